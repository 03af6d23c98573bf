"""`[data] curriculum`: harder seeds that follow when those before them are solved."""

from __future__ import annotations

from pathlib import Path

import pytest

from synth.errors import UserError
from synth.jobs.complete_file import complete_file
from synth.jobs.parse.toml import Document, read_toml
from synth.jobs.resolve.job import Overrides, resolve_job, validate_job
from synth.methods.rl import RlJob
from synth.methods.seeds import Seeds
from synth.models import Registry
from tests.service.jobs import RL

CURRICULUM = 'curriculum = ["10-19", [30, 31], {start = 50, count = 5}]\n'


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    (tmp_path / "tiny-qwen3").mkdir()
    (tmp_path / "tiny-qwen3" / "config.json").write_text('{"model_type": "qwen3"}')
    return Registry(tmp_path)


def resolved(text: str, registry: Registry) -> tuple[RlJob, list[str]]:
    found = resolve_job(read_toml(text, name="job.toml"), overrides=Overrides(), registry=registry)
    assert isinstance(found.job, RlJob)
    return found.job, found.warnings


def test_each_stage_draws_from_its_own_seeds(registry: Registry) -> None:
    job, _ = resolved(RL + CURRICULUM, registry)
    assert job.curriculum == [Seeds(start=10, count=10), Seeds(listed=[30, 31]), Seeds(start=50, count=5)]
    for stage, within in enumerate([range(10), range(10, 20), range(30, 32), range(50, 55)]):
        drawn = [seed for k in range(1, 9) for seed in job.seeds_of(k, stage=stage)]
        assert set(drawn) <= set(within)
        assert len(set(drawn)) >= 2


def test_a_curriculum_is_written_back_as_a_file(registry: Registry) -> None:
    text = RL.replace("[data]", "solved_after = 7\n[data]") + CURRICULUM
    report = validate_job(read_toml(text, name="job.toml"), overrides=Overrides(), registry=registry)
    assert (report.problems, report.values["solved_after"]) == ([], 7)
    document = Document(name="again.toml", data=complete_file(report, report.values))
    assert resolve_job(document, overrides=Overrides(), registry=registry).job == report.job


def test_a_curriculum_that_could_never_begin_is_refused(registry: Registry) -> None:
    text = RL.replace("[data]", "solved_after = 0\n[data]") + CURRICULUM
    with pytest.raises(UserError, match=r"solved_after = 0 takes none for solved") as raised:
        resolved(text, registry)
    assert "[data].curriculum" in raised.value.problems[0].where


@pytest.mark.parametrize(
    ("text", "key"),
    [(RL.replace('"0-9"', "[7]"), "seeds"), (RL + 'curriculum = ["10-19", [30]]\n', "curriculum")],
)
def test_fewer_seeds_than_groups_are_refused(registry: Registry, text: str, key: str) -> None:
    with pytest.raises(UserError) as raised:
        resolved(text, registry)
    [problem] = raised.value.problems
    assert problem.what == "1 seed, and an iteration has 2 groups (batch_size), each on a seed of its own"
    assert (problem.expected, problem.fix) == ("at least 2 seeds", "give more seeds, or lower [training] batch_size")
    assert problem.where.endswith(f"[data].{key}")


def test_seeds_that_are_wrong_are_named(registry: Registry) -> None:
    with pytest.raises(UserError, match=r"curriculum") as raised:
        resolved(RL + 'curriculum = ["9-3"]\n', registry)
    assert '"0-99"' in raised.value.problems[0].expected


def test_a_curriculum_that_plays_what_is_evaluated_is_warned_about(registry: Registry) -> None:
    text = RL + CURRICULUM + "[evaluation]\nseeds = [31, 99]\nevery_n_iters = 1\n"
    assert any("shares 1 seeds of its set 2 with [evaluation], such as 31" in w for w in resolved(text, registry)[1])
