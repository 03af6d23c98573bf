"""A job file with a `[grader]`: rows of files in place of a task app."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from synth.events import JobCreated, JobRejected, JobValidated
from synth.jobs.complete_file import complete_file
from synth.jobs.parse.toml import Document
from synth.jobs.resolve.job import Overrides, ValidationReport, validate_job
from synth.methods.rl import RlJob
from synth.models import Registry
from synth.validator.validate import validate

GRADER = {"type": "string_check", "name": "g", "input": "{{item.x}}", "reference": "y", "operation": "eq"}
JOB: dict[str, Any] = {
    "grader": GRADER,
    "job": {"data": "file_1"},
    "data": {"seeds": "0-9", "validation_path": "file_2"},
    "model": {"base": "tiny-qwen3"},
    "training": {"iterations_per_epoch": 2},
    "evaluation": {"instances": 4, "every_n_iters": 1},
}


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Registry:
    models = tmp_path_factory.mktemp("models")
    (models / "tiny-qwen3").mkdir()
    (models / "tiny-qwen3" / "config.json").write_text('{"model_type": "qwen3"}')
    return Registry(models)


def _looked(registry: Registry, **tables: Any) -> ValidationReport:
    data = copy.deepcopy(JOB)
    for name, table in tables.items():
        data[name] = {**data.get(name, {}), **table}
    document = Document(name="job.toml", data={k: v for k, v in data.items() if v is not None})
    return validate_job(document, overrides=Overrides(), registry=registry)


def test_its_rows_and_its_grader_are_the_job(registry: Registry):
    job = _looked(registry).job
    assert isinstance(job, RlJob)
    assert job.graded is not None
    assert (job.graded.grader, job.graded.training_file, job.graded.validation_file) == (GRADER, "file_1", "file_2")
    assert (job.train_seeds.first(), job.rollout.task_url) == (list(range(10)), "")
    # The first rows of the other file.
    assert job.evaluation is not None
    assert (job.evaluation.seeds, job.graded.file_of("eval")) == ([0, 1, 2, 3], "validation_file")


def test_as_a_file_it_is_the_same_job(registry: Registry):
    report = _looked(registry)
    assert report.job is not None
    tables = complete_file(report, report.values)
    again = validate_job(Document(name="again.toml", data=tables), overrides=Overrides(), registry=registry)
    assert (again.job, again.warnings) == (report.job, [])


@pytest.mark.parametrize(
    ("tables", "where", "words"),
    [
        ({"grader": {"type": "oracle"}}, "[grader].type", "not known"),
        ({"grader": {"input": "{{x}}"}}, "[grader].input", "no reference"),
        ({"job": {"data": None}}, "[job].data", "no dataset"),
        ({"job": {"data": "rows.jsonl"}}, "[job].data", "was not uploaded"),
        ({"data": {"seeds": None}}, "[data].seeds", "missing"),
        ({"data": {"validation_path": None}}, "[evaluation].seeds", "missing"),
        ({"services": {"task_url": "http://127.0.0.1:1"}}, "[services].task_url", "both given"),
        ({"rollout": {"max_turns": 2}}, "[rollout].max_turns", "one reply"),
        ({"rollout": {"task_app_origin_rewards_only": True}}, "task_app_origin_rewards_only", "no task app"),
        ({"training": {"step_rewards_enabled": True, "step_rewards_mode": "env_sparse"}}, "[training]", "one reply"),
    ],
)
def test_what_does_not_fit_a_grader_is_told(registry: Registry, tables: dict[str, Any], where: str, words: str):
    problems = _looked(registry, **tables).problems
    assert any(where in p.where and words in p.what for p in problems), problems


SCORE = {"type": "score_model", "name": "g", "model": "j", "input": [{"role": "user", "content": "{{item.x}}"}]}
JUDGE = {"judges": [{"model": "j", "provider": "synth", "votes": 3}], "max_calls": 7}


def _asking(registry: Registry, **tables: Any) -> ValidationReport:
    data = {**copy.deepcopy(JOB), "grader": SCORE, "judge": JUDGE, **tables}
    document = Document(name="job.toml", data={k: v for k, v in data.items() if v is not None})
    return validate_job(document, overrides=Overrides(), registry=registry)


def test_a_grader_that_asks_a_model_asks_the_judge_of_that_name(registry: Registry):
    report = _asking(registry)
    job = report.job
    assert isinstance(job, RlJob), report.problems
    judging = job.rewards.judging
    assert judging is not None
    assert (job.rewards.scores, judging.judges[0].votes, judging.max_calls) == ("grader", 3, 7)
    assert (judging.event, judging.outcome, judging.rubric, report.warnings) == (False, False, None, [])
    tables = complete_file(report, report.values)
    again = validate_job(Document(name="again.toml", data=tables), overrides=Overrides(), registry=registry)
    assert (again.job, again.warnings) == (job, [])


@pytest.mark.parametrize(
    ("tables", "where", "words"),
    [
        ({"judge": None}, "[grader]", "no judge is named so"),
        ({"judge": {"judges": [*JUDGE["judges"], *JUDGE["judges"]]}}, "judges", "2 judges are named so"),
        ({"judge": {"judges": [*JUDGE["judges"], {"model": "k", "provider": "synth"}]}}, "judges", "by no grader"),
        ({"judge": {"judges": [{"model": "j", "provider": "synth", "weight": 2.0}]}}, "judges", "of its own"),
        ({"judge": {**JUDGE, "ranking": True}}, "ranking", "by a rubric"),
        ({"judge": {**JUDGE, "options": {"event": True}}}, "event", "by a rubric"),
        ({"rubric": {"weights": {"env": 1.0, "outcome": 1.0}}}, "[rubric]", "by a rubric"),
        ({"rollout": {"task_app_origin_rewards_only": True}}, "task_app_origin_rewards_only", "by a rubric"),
        ({"grader": {**SCORE, "range": [1, 0]}}, "[grader].range", "goes from 1 to 0"),
    ],
)
def test_what_does_not_fit_a_grader_that_asks_a_model_is_told(
    registry: Registry, tables: dict[str, Any], where: str, words: str
):
    problems = _asking(registry, **tables).problems
    assert any(where in p.where and words in p.what for p in problems), problems


def test_code_is_refused_unread_where_the_operator_has_not_allowed_it(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
):
    """To parse a megabyte of code takes seconds."""
    parsed: list[str] = []
    monkeypatch.setattr("synth.graders.schema.source_wrong", parsed.append)
    grader = {"type": "python", "name": "p", "source": "def grade(sample, item):\n    return 1"}
    config = json.dumps({**JOB, "grader": grader})
    created = JobCreated(config=config, config_name="job.toml", config_format="json", kind="rl", body_sha256="")
    refused = validate(created, registry)
    assert isinstance(refused, JobRejected)
    assert "runs no code" in refused.problems[0].what
    assert parsed == []
    assert isinstance(validate(created, registry, python_graders=True), JobValidated)
    assert len(parsed) == 1


def test_what_only_a_task_app_reads_has_no_effect(registry: Registry):
    warnings = _looked(registry, rollout={"env_name": "math"}).warnings
    assert any("env_name" in warning and "no task app" in warning for warning in warnings)


def test_a_document_with_a_grader_is_rl_by_itself(registry: Registry):
    assert _looked(registry).kind == "rl"
