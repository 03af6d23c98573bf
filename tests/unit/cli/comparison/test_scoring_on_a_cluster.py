"""What a comparison sends to the cluster's graders and judges, and what it makes of their answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.backend import Answer, Backend, Request, backend_that
from tests.unit.cli.checking import KEY as CLUSTER_KEY
from tests.unit.cli.checking import Run
from tests.unit.cli.comparison.conftest import sums, write_rows

RUBRIC = """
[judge.options]
model = "a-judge"
provider = "hub"

[rubric.outcome]
criteria = [{ id = "correct", description = "The sum is correct." }]
"""
ERRORS = {"sample_parse_error": False, "details": None}


class Judges:
    """A cluster without models, whose judge prefers the right sum, and what stands first if both are alike."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.failures: list[Answer] = []

    def __call__(self, request: Request) -> Answer:
        if request.path == "/api/me":
            return Answer(body={"org": "o", "org_name": "o", "key_id": "k", "key_name": "k", "scopes": []})
        if request.path.startswith("/api/models/"):
            return Answer(404, {"error": {"message": "there is no such model"}})
        body = json.loads(request.body)
        self.bodies.append(body)
        if self.failures:
            return self.failures.pop(0)
        if request.path == "/api/judge/v1/score":
            [event] = body["trace"]["event_history"]
            [call] = event["call_records"]
            score = _is_right(call["input_messages"][0]["content"], call["output_messages"][0]["content"])
            criteria = {"correct": {"score": score, "reason": "I added"}}
            return Answer(body={"aggregate_score": score, "outcome_review": {"criteria": criteria}})
        pair = json.loads(body["model_sample"])
        asked = json.loads(body["item"]["conversation"])[-1]["content"]
        first, second = _is_right(asked, pair["first"]), _is_right(asked, pair["second"])
        return Answer(body={"reward": 0.5 + (second - first) / 2, "metadata": {"errors": ERRORS}})


def _is_right(question: str, reply: str) -> float:
    return float(reply == str(2 * int(question.split()[0])))


@pytest.fixture
def judges() -> Judges:
    return Judges()


@pytest.fixture
def cluster_url(judges: Judges, without_a_cluster: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with backend_that(judges) as (backend, _):
        monkeypatch.setenv("SYNTH_API_KEY", CLUSTER_KEY)
        monkeypatch.setenv("BACKEND_BASE_URL", backend.url)
        yield backend.url


def compared(run: Run, url: str, *flags: str) -> dict[str, Any]:
    write_rows(sums(4))
    Path("rubric.toml").write_text(RUBRIC)
    flags = ("--rows", "sums.jsonl", "--base-url", url, *flags, "-o", "json")
    code, out, err = run("compare", "good", "weak", *flags)
    assert code == 0, err
    return json.loads(out)


def test_a_rubric_is_scored_by_the_judge_that_the_file_names(
    run: Run, url: str, cluster_url: str, judges: Judges, backend: Backend
):
    good, weak = compared(run, url, "--judge", "rubric.toml")["models"]
    assert (good["mean"], weak["mean"]) == (1.0, 0.5)
    assert judges.bodies[0]["options"] == {"event": False, "model": "a-judge", "provider": "hub"}
    assert judges.bodies[0]["rubric"]["outcome"]["criteria"][0]["id"] == "correct"


def test_a_judge_compares_each_pair_in_both_orders(run: Run, url: str, cluster_url: str, judges: Judges):
    weak = compared(run, url, "--judge-model", "a-judge")["models"][1]
    # Two rows are alike, and cost no call; the judge prefers the first model on the others.
    assert (weak["wins"], weak["order_decided"], len(judges.bodies)) == (0.25, 0, 4)
    pairs = {body["model_sample"] for body in judges.bodies}
    assert '{"first": "2", "second": "3"}' in pairs
    assert '{"first": "3", "second": "2"}' in pairs
    assert judges.bodies[0]["grader"]["model"] == "a-judge"


def test_a_judge_that_prefers_what_stands_first_decides_nothing(
    run: Run, url: str, cluster_url: str, judges: Judges, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(f"{__name__}._is_right", lambda question, reply: 0.0)
    judges.failures = [Answer(body={"reward": 0.0, "metadata": {"errors": ERRORS}})] * 4
    weak = compared(run, url, "--judge-model", "a-judge")["models"][1]
    assert (weak["wins"], weak["order_decided"]) == (0.5, 2)


def test_a_judge_that_gives_no_score_is_not_called_again_and_leaves_the_reply_without(
    run: Run, url: str, cluster_url: str, judges: Judges
):
    error = {"type": "judge_unreadable", "message": "the judge gave no scores in 3 calls"}
    judges.failures = [Answer(503, {"error": error})]
    good = compared(run, url, "--judge", "rubric.toml", "--concurrency", "1")["models"][0]
    assert (good["rows"], good["unscored"]) == (3, {"1": "the judge gave no scores in 3 calls"})
    assert len(judges.bodies) == 8


def test_a_key_of_the_rubrics_file_without_effect_is_refused(run: Run, url: str, cluster_url: str):
    write_rows(sums(2))
    Path("rubric.toml").write_text(RUBRIC.replace('provider = "hub"', "max_calls = 3"))
    code, _, err = run("compare", "good", "weak", "--rows", "sums.jsonl", "--base-url", url, "--judge", "rubric.toml")
    assert code == 2
    assert "[judge.options].max_calls has no effect on a dataset" in err


def test_without_the_packages_of_the_extra_the_cluster_compares_texts(
    run: Run, url: str, cluster_url: str, judges: Judges, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("synth.cli.comparison.scoring.find_spec", lambda name: None)
    part = {"type": "text_similarity", "evaluation_metric": "bleu", "input": "{{sample.output_text}}", "reference": "4"}
    check = {"type": "string_check", "operation": "eq", "input": "{{sample.output_text}}", "reference": "4"}
    graders = {"alike": part | {"name": "alike"}, "same": check | {"name": "same"}}
    multi = {"type": "multi", "name": "both", "graders": graders, "calculate_output": "alike / 2 + same / 2"}
    Path("grader.json").write_text(json.dumps(multi))
    judges.failures = [Answer(body={"reward": 0.5, "metadata": {"errors": ERRORS}})] * 8
    good = compared(run, url, "--grader", "grader.json")["models"][0]
    # Of 0, 2, 4 and 6 one is 4.
    assert good["mean"] == pytest.approx((4 * 0.25 + 0.5) / 4)
    assert {body["grader"]["type"] for body in judges.bodies} == {"text_similarity"}
