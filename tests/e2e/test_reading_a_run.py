"""What `docs/read-your-run.md` does with two jobs, as written; and a job's configuration, submitted again."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, Block, blocks_of
from tests.e2e.platform import Platform, rl
from tests.e2e.task_apps import Served

PAGE = ROOT / "docs" / "read-your-run.md"
BLOCKS = [block for block in blocks_of(PAGE) if block.mark == "run by" and block.value.endswith(Path(__file__).name)]
EVALUATED = "[evaluation]\nevery_n_iters = 1\ninstances = 4\nrollouts_per_seed = 2\nsuccess_threshold = 0.5"

pytestmark = [pytest.mark.timeout(1200), pytest.mark.long]


@dataclass(frozen=True)
class Runs:
    """Two RL jobs that differ in one key."""

    platform: Platform
    a: str
    b: str


@pytest.fixture(scope="module")
def runs(platform: Platform, letters_app: Served) -> Runs:
    text = rl("tiny-qwen3", letters_app.url, iterations=2, tail=EVALUATED)
    text = text.replace("[model]", '[model]\nlabel = "rates"')
    a = platform.submit(text, "--name", "first", "--tag", "study=rate")
    b = platform.submit(text, "--name", "second", "--tag", "study=rate", "--set", "training.learning_rate=2e-3")
    for job in (a, b):
        platform.succeeded(job)
    return Runs(platform, a, b)


def test_the_page_has_commands_to_run():
    assert len(BLOCKS) >= 4


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: str(block.line))
def test_the_commands_of_the_page_run_as_written(block: Block, runs: Runs):
    shell = runs.platform.shell
    for line in block.text.splitlines():
        named = {"JOB_A": runs.a, "JOB_B": runs.b, "JOB": runs.a}
        words = [named.get(word, word) for word in shlex.split(line, comments=True)]
        assert words[0] == "synthctl"
        to = words[words.index(">") + 1] if ">" in words else None
        said = shell.ok(*words[1 : words.index(">") if to else None])
        assert said
        if to:
            (shell.folder / to).write_text(said)


def test_what_differs_is_the_key_that_was_set_and_the_curves_begin_with_the_source(runs: Runs):
    found = runs.platform.shell.json("jobs", "compare", runs.a, runs.b)
    assert [d["key"] for d in found["differences"]] == ["[training].learning_rate"]
    assert found["differences"][0]["values"] == {runs.a: 1e-3, runs.b: 2e-3}
    assert [job["name"] for job in found["jobs"]] == ["first", "second"]
    for job in (runs.a, runs.b):
        assert [step for step, _ in found["curves"]["eval.reward_mean"][job]] == [0, 1, 2]
    [first, second] = found["evaluations"]
    assert (first["evaluation"], first["difference"]) == (f"{runs.a} step 2", None)
    assert second["difference"]["seeds"] == 4
    # Both judge the same model on the same seeds at step 0.
    source = runs.platform.shell.json("eval", "compare", runs.a, runs.b, "--step", "0")["differences"][0]
    assert source["seeds"] == 4


def test_seeds_that_are_played_twice_give_mean_at_2_and_pass_at_2(runs: Runs):
    values = runs.platform.events(runs.a, "eval.completed")[-1]["values"]
    assert values["rollouts"] == 8
    assert values["mean@2"] == pytest.approx(values["reward_mean"])
    assert 0 <= values["pass@1"] <= values["pass@2"] <= 1
    assert runs.platform.job(runs.a)["eval"] == values
    measures = runs.platform.shell.json("eval", "show", runs.a)["measures"]
    for name in ("mean@2", "pass@1", "pass@2"):
        assert (measures[name]["value"], measures[name]["seeds"]) == (pytest.approx(values[name]), 4)
        assert measures[name]["interval"]["low"] == pytest.approx(values[f"{name}_low"])


def test_a_jobs_configuration_submitted_again_is_the_same_job(runs: Runs):
    shell = runs.platform.shell
    (shell.folder / "again.toml").write_text(shell.ok("jobs", "config", runs.b))
    again = runs.platform.submit((shell.folder / "again.toml").read_text())
    runs.platform.succeeded(again)
    assert runs.platform.job(again)["resolved"] == runs.platform.job(runs.b)["resolved"]
    assert "# --set" in shell.ok("jobs", "config", runs.b, "--as-submitted")
    found = [job["id"] for job in shell.json("jobs", "ls", "--tag", "study=rate")]
    assert {runs.a, runs.b, again} <= set(found)


def test_a_job_is_found_by_its_name_and_by_its_models_label(runs: Runs):
    shell = runs.platform.shell
    assert [job["id"] for job in shell.json("jobs", "ls", "--name", "first")] == [runs.a]
    labelled = [job["id"] for job in shell.json("jobs", "ls", "--name", "rates")]
    assert {runs.a, runs.b} <= set(labelled)
    assert shell.json("jobs", "get", "second")["label"] == "rates"
    assert shell.json("jobs", "ls", "--name", "firs") == []


def test_checkpoints_show_their_evaluation_and_an_unknown_metric_is_told_the_names(runs: Runs):
    shell = runs.platform.shell
    heading, *lines = [line.split("\t") for line in shell.ok("jobs", "checkpoints", runs.a).splitlines()]
    column = heading.index("evaluation")
    assert [line[column] for line in lines if line[column] == "-"] == []
    wrong = shell.run("jobs", "metrics", runs.a, "--name", "rewrd")
    assert wrong.returncode == 2
    assert "eval.reward_mean" in wrong.stderr
