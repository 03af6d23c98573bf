"""`synthctl compare` and `synthctl eval --dataset`, with hosted models and no cluster."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.backend import Answer
from tests.unit.cli.checking import Run
from tests.unit.cli.comparison.chat_api import ChatApi, error
from tests.unit.cli.comparison.conftest import sums, write_rows


def compared(run: Run, url: str, *flags: str, models: tuple[str, ...] = ("good", "weak")) -> dict[str, Any]:
    code, out, err = run("compare", *models, "--rows", "sums.jsonl", "--base-url", url, *flags, "-o", "json")
    assert code == 0, err
    return json.loads(out)


def test_two_hosted_models_are_compared_row_by_row_without_a_cluster(run: Run, url: str):
    write_rows(sums(20))
    good, weak = compared(run, url, "--price", "good=2,10")["models"]
    assert (good["mean"], weak["mean"], good["rows"]) == (1.0, 0.5, 20)
    assert (weak["difference"]["mean"], weak["difference"]["worse"], weak["difference"]["equal"]) == (-0.5, 10, 10)
    assert weak["difference"]["interval"]["high"] < 0
    assert (good["cost_of_1000_calls"], weak["cost_of_1000_calls"]) == (pytest.approx(0.24), None)
    lines = [json.loads(line) for line in Path("comparison/scores.jsonl").read_text().splitlines()]
    assert lines[1] == {"row": 2, "scores": {"good": 1.0, "weak": 0.0}, "preferred": {}}


def test_a_person_gets_a_table_a_verdict_and_two_reports(run: Run, url: str):
    write_rows(sums(20))
    code, out, err = run("compare", "good", "weak", "--rows", "sums.jsonl", "--base-url", url)
    assert code == 0, err
    assert "rows: B is better on 0, worse on 10, the same on 10" in out
    assert "A is better: the interval does not contain 0" in out
    assert "wrote comparison/report.md and comparison/report.html" in err
    report = Path("comparison/report.md").read_text()
    assert "### row 2\n\nprompt\n\n```text\nuser: 1 + 1 =\n```\n\nreference\n\n```text\n2\n```" in report
    assert report.count("### row") == 20


def test_the_same_command_again_pays_for_no_reply_twice(run: Run, url: str, api: ChatApi):
    write_rows(sums(6))
    compared(run, url)
    assert len(api.bodies) == 12
    assert compared(run, url)["models"][0]["mean"] == 1.0
    assert len(api.bodies) == 12
    # Another request is another reply.
    compared(run, url, "--temperature", "0")
    assert len(api.bodies) == 24
    assert api.bodies[-1]["temperature"] == 0


def test_a_run_that_broke_off_goes_on_with_the_rows_that_are_left(run: Run, url: str, api: ChatApi):
    write_rows(sums(6))
    api.by_text["4 + 4"] = error(500, "the server is on fire")
    flags = ("--rows", "sums.jsonl", "--base-url", url, "--concurrency", "1", "--api-patience", "0")
    code, _, err = run("compare", "good", "weak", *flags)
    assert code == 1
    assert "127.0.0.1 answers HTTP 500: the server is on fire" in err
    assert "try again later; the replies so far are kept" in err
    replies = Path("comparison/answers/good.jsonl")
    assert len(replies.read_text().splitlines()) == 4
    with replies.open("a") as file:
        file.write('{"row":5,"request":"cut in the mid')
    api.by_text.clear()
    api.bodies.clear()
    code, _, err = run("compare", "good", "weak", *flags)
    assert code == 0, err
    assert len(api.bodies) == 2 + 6
    assert len(replies.read_text().splitlines()) == 6


def test_an_api_that_limits_calls_is_called_again_when_it_allows(run: Run, url: str, api: ChatApi):
    write_rows(sums(4))
    api.failures += [error(429, "slow down", **{"Retry-After": "0.05"})] * 6
    assert compared(run, url)["models"][0]["rows"] == 4


def test_a_spent_quota_ends_the_run_at_once(run: Run, url: str, api: ChatApi):
    write_rows(sums(4))
    body = {"error": {"message": "You exceeded your current quota", "code": "insufficient_quota"}}
    api.failures += [Answer(429, body)] * 8
    code, _, err = run("compare", "good", "weak", "--rows", "sums.jsonl", "--base-url", url, "--concurrency", "1")
    assert code == 1
    assert "You exceeded your current quota" in err
    assert len(api.bodies) == 1


def test_rows_that_the_api_refuses_are_counted_and_the_others_go_on(run: Run, url: str, api: ChatApi):
    write_rows(sums(4))
    api.by_text["3 + 3"] = error(400, "this violates our policy")
    code, out, err = run("compare", "good", "weak", "--rows", "sums.jsonl", "--base-url", url)
    assert code == 0
    assert "refused rows\t1\t1" in out
    assert "good: no reply to 1 rows, such as row 4: 127.0.0.1 refuses the request: this violates our policy" in err


@pytest.mark.parametrize("body", [b'{"choices": [{"mess', {"choices": []}, {"choices": [{"message": None}]}])
def test_an_answer_that_is_no_completion_is_left_for_the_next_run(run: Run, url: str, api: ChatApi, body: Any):
    write_rows(sums(2))
    api.by_text["1 + 1"] = Answer(200, body)
    good = compared(run, url)["models"][0]
    assert (good["rows"], list(good["failures"])) == (1, ["2"])
    # It may have been billed.
    assert len(api.bodies) == 4
    api.by_text.clear()
    assert compared(run, url)["models"][0]["rows"] == 2
    assert len(api.bodies) == 6


def test_a_reply_that_takes_too_long_is_left_for_the_next_run(run: Run, url: str, api: ChatApi):
    write_rows(sums(2))
    api.waits["1 + 1"] = threading.Event()
    try:
        code, _, err = run(
            *("compare", "good", "weak", "--rows", "sums.jsonl", "--base-url", url, "--reply-timeout", "1")
        )
    finally:
        api.waits["1 + 1"].set()
    assert code == 0, err
    assert "good: no reply to 1 rows, such as row 2: 127.0.0.1 has not answered" in err
    assert len(api.bodies) == 4


def test_a_refused_key_is_one_message(run: Run, url: str, monkeypatch: pytest.MonkeyPatch):
    write_rows(sums(2))
    monkeypatch.setenv("OPENAI_API_KEY", "sk_revoked")
    code, _, err = run("compare", "good", "weak", "--rows", "sums.jsonl", "--base-url", url)
    assert code == 4
    assert err.count("127.0.0.1 refuses OPENAI_API_KEY (environment)") == 1


def test_a_key_goes_to_no_address_that_was_not_confirmed(run: Run, url: str, api: ChatApi):
    write_rows(sums(2))
    code, _, err = run("compare", "good", "weak", "--rows", "sums.jsonl", "--base-url", "https://api.example.com/v1")
    assert code == 2
    assert "OPENAI_API_KEY (environment) is not sent to https://api.example.com" in err
    assert "--trust-model-url" in err


def test_models_that_want_the_newer_name_of_the_limit_get_it_in_every_thread(run: Run, url: str, api: ChatApi):
    write_rows(sums(8))
    api.refuses_max_tokens = threading.Barrier(8)
    assert [model["rows"] for model in compared(run, url, "--max-tokens", "5")["models"]] == [8, 8]
    assert sum("max_tokens" in body for body in api.bodies) == 16
    assert sum("max_completion_tokens" in body for body in api.bodies) == 16


def test_a_model_that_changes_its_id_is_a_warning(run: Run, url: str, api: ChatApi):
    write_rows(sums(2))
    api.names += ["good-2026-01-01", "good-2026-06-01"]
    _, _, err = run("compare", "good", "weak", "--rows", "sums.jsonl", "--base-url", url, "--concurrency", "1")
    assert "good answered as several models: good-2026-01-01, good-2026-06-01; the comparison mixes them" in err


def test_one_model_is_evaluated_by_a_grader(run: Run, url: str):
    write_rows(sums(4))
    grader = {
        "type": "string_check",
        "name": "same",
        "operation": "eq",
        "input": "{{sample.output_text}}",
        "reference": "{{item.reference}}",
    }
    Path("grader.json").write_text(json.dumps(grader))
    flags = ("--dataset", "sums.jsonl", "--grader", "grader.json", "--base-url", url)
    code, out, err = run("eval", "--model", "weak", *flags)
    assert code == 0, err
    assert "score: grader same" in err
    assert "A\tweak\t0.5\t4" in out
    assert Path("evaluation/report.html").exists()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--dataset", "sums.jsonl", "--seeds", "0-9", "--model", "m"), "--seeds has no effect on a dataset"),
        (("--dataset", "sums.jsonl"), "--model missing"),
        (("--model", "m", "--grader", "g.json"), "--grader has no effect without --dataset ROWS"),
        (("--model", "m", "--model", "n", "--seeds", "0-9"), "2 models"),
        (("--dataset", "sums.jsonl", "--model", "m", "--model", "m"), "m is given twice"),
        (("--dataset", "sums.jsonl", "--model", "m"), "no cluster serves it: no API key"),
        (("--dataset", "none.jsonl", "--model", "m"), "none.jsonl"),
        (("--dataset", "sums.jsonl", "--model", "m", "--grader", "code.json"), "'run' runs on a cluster: no API key"),
        (("--dataset", "sums.jsonl", "--model", "m", "--grader", "sums.jsonl"), "this is no JSON"),
        (("--dataset", "sums.jsonl", "--model", "m", "--price", "cheap"), "'cheap' is no price"),
        (("--dataset", "sums.jsonl", "--model", "m", "--price", "x=1,2"), "'x' is no model of this command"),
    ],
)
def test_what_cannot_be_evaluated_is_refused_before_a_call(run: Run, flags: tuple[str, ...], words: str):
    write_rows(sums(2))
    Path("code.json").write_text('{"type": "python", "name": "run", "source": "def grade(sample, item): return 1"}')
    code, _, err = run("eval", *flags)
    assert code == 2, err
    assert words in err


def test_rows_without_a_reply_need_a_grader_or_a_judge(run: Run, url: str, api: ChatApi):
    write_rows([{"messages": [{"role": "user", "content": "2 + 2 ="}]}])
    code, _, err = run("compare", "good", "weak", "--rows", "sums.jsonl", "--base-url", url)
    assert code == 2
    assert "sums.jsonl: row 1: the row ends with no assistant message" in err
    assert api.bodies == []


def test_a_bad_row_is_reported_before_a_call(run: Run, url: str, api: ChatApi):
    Path("sums.jsonl").write_text('{"messages": [{"role": "user"\n')
    code, _, err = run("compare", "good", "weak", "--rows", "sums.jsonl", "--base-url", url)
    assert code == 2
    assert "sums.jsonl:1" in err
    assert api.bodies == []


def test_several_replies_to_a_row_count_as_their_mean(run: Run, url: str, api: ChatApi):
    write_rows(sums(2))
    api.reply = lambda model, text: "0" if len(api.bodies) % 2 else "2"
    weak = compared(run, url, "--samples", "4", "--concurrency", "1")["models"][1]
    assert (len(api.bodies), weak["rows"], weak["mean"]) == (16, 2, 0.5)
