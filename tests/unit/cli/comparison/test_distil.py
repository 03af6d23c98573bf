"""`synthctl distil`: a teacher's replies as rows, within a budget."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from synth.cli.checking.dataset import check_dataset
from synth.cli.sampling.answers import Answer as Reply
from synth.cli.sampling.budget import Price, SpendingLimit
from tests.unit.cli.backend import Answer
from tests.unit.cli.checking import Run
from tests.unit.cli.comparison.chat_api import ChatApi, error
from tests.unit.cli.comparison.conftest import sums, write_rows
from tests.unit.cli.comparison.test_forms import WEATHER, call

LENGTH = {
    "type": "python",
    "name": "length",
    "source": "def grade(sample, item): return len(sample['output_text'])",
}
EXACT = {
    "type": "string_check",
    "name": "exact",
    "operation": "eq",
    "input": "{{sample.output_text}}",
    "reference": "{{item.reference}}",
}


def distilled(run: Run, url: str, *flags: str) -> dict[str, Any]:
    command = ("distil", "--teacher", "good", "--prompts", "sums.jsonl", "--base-url", url, "--i-may-train-on-this")
    code, out, err = run(*command, *flags, "-o", "json")
    assert code == 0, err
    return json.loads(out)


def rows(folder: str = "distilled") -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(folder, "rows.jsonl").read_text().splitlines()]


def test_prompts_become_rows_with_the_teachers_replies(run: Run, url: str):
    write_rows([*sums(3), *sums(2)])
    report = distilled(run, url)
    assert (report["rows"], report["prompts"], report["repeated_prompts"], report["sampled"]) == (3, 3, 2, 3)
    user, assistant = {"role": "user", "content": "2 + 2 ="}, {"role": "assistant", "content": "4"}
    assert rows()[2] == {"messages": [user, assistant]}
    assert check_dataset(Path("distilled/rows.jsonl")).problems == []


def test_without_the_users_word_nothing_is_sampled(run: Run, url: str, api: ChatApi):
    write_rows(sums(2))
    code, _, err = run("distil", "--teacher", "good", "--prompts", "sums.jsonl", "--base-url", url)
    assert code == 2
    assert "is it allowed to train a model on the replies of good?" in err
    assert "the terms of use of 127.0.0.1, and the licence of the model" in err
    assert "--i-may-train-on-this" in err
    assert api.bodies == []


def test_replies_that_cannot_be_learnt_from_are_dropped_by_name(run: Run, url: str, api: ChatApi):
    write_rows([{"messages": [{"role": "user", "content": str(n)}], "tools": [WEATHER]} for n in range(6)])
    message = {"role": "assistant", "content": None, "refusal": "I cannot help with that"}
    refusal = Answer(200, {"choices": [{"message": message, "finish_reason": "stop"}]})
    cut = Answer(200, {"choices": [{"message": {"role": "assistant", "content": "so"}, "finish_reason": "length"}]})
    api.by_text |= {"1": refusal, "2": cut, "5": error(400, "no")}
    api.reply = lambda model, text: {"0": "fine", "3": call('{"city": "Bern"}'), "4": call("{}")}[text]
    report = distilled(run, url)
    assert report["dropped"] == {"refusal": 1, "cut off at the token limit": 1, "invalid tool call": 1}
    assert report["refused"] == {"6": "127.0.0.1 refuses the request: no"}
    assert [row["messages"][-1].get("content") for row in rows()] == ["fine", None]
    assert rows()[1]["tools"] == [WEATHER]
    assert check_dataset(Path("distilled/rows.jsonl")).problems == []
    assert len(distilled(run, url, "--keep-cut-off")["dropped"]) == 2


def test_a_grader_keeps_the_good_replies_once_each(run: Run, url: str, api: ChatApi):
    write_rows(sums(4))
    Path("exact.json").write_text(json.dumps(EXACT))
    api.reply = lambda model, text: str(len(api.bodies) % 2 * 2)
    report = distilled(run, url, "--n", "4", "--grader", "exact.json", "--min-score", "1", "--concurrency", "1")
    assert [row["messages"][-1]["content"] for row in rows()] == ["0", "2"]
    assert report["dropped"] == {"duplicate": 8, "below --min-score": 6}


def test_pairs_are_the_best_against_the_worst_and_dpo_takes_them(run: Run, url: str, api: ChatApi):
    write_rows(sums(2))
    Path("exact.json").write_text(json.dumps(EXACT))
    api.reply = lambda model, text: str(len(api.bodies) % 2 * 2)
    distilled(run, url, "--n", "2", "--grader", "exact.json", "--pairs", "--concurrency", "1")
    assert [(row["preferred_output"], row["non_preferred_output"]) for row in rows()] == [
        ([{"role": "assistant", "content": good}], [{"role": "assistant", "content": bad}])
        for good, bad in (("0", "2"), ("2", "0"))
    ]
    report = check_dataset(Path("distilled/rows.jsonl"))
    assert (report.problems, report.pairs) == ([], True)


def test_a_limit_of_calls_ends_a_run_and_the_next_one_goes_on(run: Run, url: str, api: ChatApi):
    write_rows(sums(5))
    first = distilled(run, url, "--max-calls", "3")
    assert (first["sampled"], first["stopped_by_the_limit"], len(rows())) == (3, True, 3)
    second = distilled(run, url, "--max-calls", "3")
    assert (second["sampled"], second["kept_from_before"], second["stopped_by_the_limit"]) == (2, 3, False)
    assert (len(api.bodies), len(rows())) == (5, 5)


def test_a_limit_of_money_is_never_passed(run: Run, url: str):
    write_rows(sums(50))
    # A call costs 20 tokens of the prompt and 20 of the reply: 0.00022 at this price.
    report = distilled(run, url, "--price", "1,10", "--max-tokens", "20", "--max-cost", "0.003")
    assert report["stopped_by_the_limit"]
    assert 8 <= report["sampled"] <= 13
    assert report["cost"] <= 0.003


def test_calls_under_way_reserve_the_most_that_they_can_cost():
    spending = SpendingLimit(max_cost=1.0, price=Price(0, 1e6 / 100))
    body = {"messages": [], "max_tokens": 40}
    reserved = [spending.reserve(body) for _ in range(3)]
    assert reserved == [pytest.approx(0.4), pytest.approx(0.4), None]
    spending.settle(0.4, body, Reply(row=1, request="", prompt_tokens=1, completion_tokens=10))
    assert spending.reserve(body) is not None
    assert (spending.calls, spending.cost) == (3, pytest.approx(0.1))


def test_an_api_that_does_not_return_its_tokens_costs_the_most_that_it_can(run: Run, url: str, api: ChatApi):
    write_rows(sums(50))
    choice = {"message": {"role": "assistant", "content": "0"}, "finish_reason": "stop"}
    api.by_text[" "] = Answer(200, {"choices": [choice]})
    limits = ("--price", "1,10", "--max-tokens", "20", "--max-cost", "0.003")
    report = distilled(run, url, *limits)
    assert report["stopped_by_the_limit"]
    assert report["sampled"] * 20 * 10 / 1e6 < report["cost"] <= 0.003


def test_log_probabilities_are_kept_if_they_are_given(run: Run, url: str, api: ChatApi):
    write_rows(sums(1))
    token = {"token": "0", "logprob": -0.1, "top_logprobs": []}
    choice = {
        "message": {"role": "assistant", "content": "0"},
        "finish_reason": "stop",
        "logprobs": {"content": [token]},
    }
    api.by_text["0"] = Answer(200, {"choices": [choice]})
    distilled(run, url, "--logprobs", "2")
    assert (api.bodies[0]["logprobs"], api.bodies[0]["top_logprobs"]) == (True, 2)
    assert json.loads(Path("distilled/answers/good.jsonl").read_text())["logprobs"] == [token]


def test_what_the_assistant_said_before_is_context(run: Run, url: str, api: ChatApi):
    turns = [("user", "hi"), ("assistant", "hello"), ("user", "1 + 1 ="), ("assistant", "3")]
    write_rows([{"messages": [{"role": role, "content": text} for role, text in turns]}])
    distilled(run, url)
    assert [m["content"] for m in api.bodies[0]["messages"]] == ["hi", "hello", "1 + 1 ="]
    assert [m.get("weight") for m in rows()[0]["messages"]] == [None, 0, None, None]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--min-score", "1"), "--min-score without a score"),
        (("--pairs", "--grader", "exact.json"), "--pairs with one reply to each prompt"),
        (("--max-cost", "1"), "--price and --max-tokens missing"),
        (("--max-cost", "1", "--price", "1,2"), "--max-tokens missing"),
        (("--pairs", "--best", "1", "--n", "2", "--grader", "exact.json"), "--pairs and --best"),
        (("--grader", "length.json"), "'length' runs on a cluster"),
    ],
)
def test_what_cannot_be_kept_to_is_refused(run: Run, url: str, api: ChatApi, flags: tuple[str, ...], words: str):
    write_rows(sums(2))
    Path("exact.json").write_text(json.dumps(EXACT))
    Path("length.json").write_text(json.dumps(LENGTH))
    command = ("distil", "--teacher", "good", "--prompts", "sums.jsonl", "--base-url", url, "--i-may-train-on-this")
    code, _, err = run(*command, *flags)
    assert code == 2, err
    assert words in err
    assert api.bodies == []


def test_nothing_left_is_an_error_that_shows_what_dropped_the_rows(run: Run, url: str, api: ChatApi):
    write_rows(sums(2))
    api.reply = lambda model, text: " "
    command = ("distil", "--teacher", "good", "--prompts", "sums.jsonl", "--base-url", url, "--i-may-train-on-this")
    code, out, err = run(*command)
    assert code == 1
    assert "dropped: empty\t2" in out
    assert "no row is left" in err
