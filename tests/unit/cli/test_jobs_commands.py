"""`synthctl jobs metrics | compare` against a gateway with a few jobs."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlparse

import pytest
from typer.testing import CliRunner, Result

from synth.cli.app import app
from synth.console.errors import UsageProblem
from tests.unit.cli.backend import Answer, Request, backend_that, job_body

JOBS = [f"job_{n:016d}" for n in range(1, 5)]
VALUES = {"aaa": 1.0, "reward_mean": 0.5, "eval.reward_mean": 0.75, "loss": 2.0, "zeta": 3.0}


def evaluated(gain: int) -> list[dict[str, Any]]:
    """The events of an evaluation of eight seeds. gain: what each seed earns more than its number's remainder."""
    rollouts = [{"mode": "eval", "rollout_id": f"e2_{s}", "seed": s, "iteration": 2} for s in range(8)]
    bodies = [("rollout.completed", rollout | {"reward": rollout["seed"] % 2 + gain}) for rollout in rollouts]
    bodies.append(("eval.completed", {"iteration": 2, "step": 2}))
    when = "2026-01-01T00:00:00Z"
    return [{"seq": n, "type": type, "data": data, "time": when} for n, (type, data) in enumerate(bodies, start=1)]


def answer(request: Request) -> Answer:
    url = urlparse(request.path)
    query = parse_qs(url.query)
    id = next((id for id in JOBS if id in url.path), "")
    if url.path.endswith("/metrics"):
        scale = JOBS.index(id) + 1
        points = [
            {"name": name, "step": step, "value": value * step * scale, "time": "2026-01-01T00:00:00Z"}
            for step in (1, 2)
            for name, value in VALUES.items()
            if name in query.get("name", [name])
        ]
        return Answer(body={"points": points, "more": False})
    if url.path.endswith("/events"):
        return Answer(body={"events": evaluated(JOBS.index(id)), "last_seq": 9, "more": False})
    if id:
        return Answer(body=job_body("succeeded", id=id, kind="rl"))
    jobs = [job_body("succeeded", id=id, kind="rl") for id in reversed(JOBS)]
    return Answer(body={"data": jobs if query.get("tag") == ["sweep=lr"] else [], "has_more": False})


def run(*arguments: str) -> Result:
    with backend_that(answer) as (backend, _):
        env = {"SYNTH_API_KEY": "synth_live_x", "BACKEND_BASE_URL": backend.url}
        return CliRunner().invoke(app, ["jobs", *arguments], env=env)


def test_the_important_figures_come_first():
    rows = run("metrics", JOBS[0]).stdout.splitlines()
    assert [row.split("\t")[0] for row in rows[1:]] == ["reward_mean", "eval.reward_mean", "loss", "aaa", "zeta"]


def test_a_misspelt_metric_has_a_suggestion():
    done = run("metrics", JOBS[0], "--name", "reward_maen")
    assert isinstance(done.exception, UsageProblem)
    assert "did you mean 'reward_mean'?" in str(done.exception)


def test_metrics_are_written_as_a_table_or_as_json(tmp_path: Path):
    assert run("metrics", JOBS[0], "--out", str(tmp_path / "run.csv")).exit_code == 0
    with (tmp_path / "run.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["step", "reward_mean", "eval.reward_mean", "loss", "aaa", "zeta"]
    assert rows[1] == {
        "step": "2",
        "reward_mean": "1.0",
        "eval.reward_mean": "1.5",
        "loss": "4.0",
        "aaa": "2.0",
        "zeta": "6.0",
    }
    assert run("metrics", JOBS[0], "--name", "loss", "--out", str(tmp_path / "run.json")).exit_code == 0
    points: list[dict[str, Any]] = json.loads((tmp_path / "run.json").read_text())["points"]
    assert [(p["name"], p["step"], p["value"]) for p in points] == [("loss", 1, 2.0), ("loss", 2, 4.0)]


@pytest.mark.parametrize(("name", "begin"), [("run.png", b"\x89PNG"), ("run.svg", b"<?xml")])
def test_metrics_are_written_as_a_picture(tmp_path: Path, name: str, begin: bytes):
    done = run("metrics", JOBS[0], "--out", str(tmp_path / name))
    assert done.exit_code == 0, done.output
    assert (tmp_path / name).read_bytes().startswith(begin)


def test_a_file_of_another_kind_is_refused(tmp_path: Path):
    done = run("metrics", JOBS[0], "--out", str(tmp_path / "run.pdf"))
    assert isinstance(done.exception, UsageProblem)
    assert not (tmp_path / "run.pdf").exists()


def test_a_picture_without_the_plotting_package_names_its_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    for module in [m for m in sys.modules if m.startswith(("matplotlib", "synth.cli.figures.drawing"))]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = run("metrics", JOBS[0], "--out", str(tmp_path / "run.png"))
    assert isinstance(done.exception, ModuleNotFoundError), "the program's edge prints the extra of it"
    assert not (tmp_path / "run.png").exists()


def test_the_jobs_with_a_tag_are_compared_oldest_first():
    data = json.loads(run("compare", "--tag", "sweep=lr", "-o", "json").stdout)
    assert [job["id"] for job in data["jobs"]] == JOBS


def test_the_last_evaluations_are_compared_with_the_first_seed_by_seed():
    data = json.loads(run("compare", *JOBS[:3], "-o", "json").stdout)
    differences = [evaluation["difference"] for evaluation in data["evaluations"]]
    assert [d and (d["mean"], d["seeds"]) for d in differences] == [None, (1.0, 8), (2.0, 8)]
    shown = run("compare", *JOBS[:2]).stdout
    assert "B is better: the interval does not contain 0" in shown


def test_a_tag_of_no_job_is_an_error_that_names_it():
    done = run("compare", "--tag", "sweep=none")
    assert isinstance(done.exception, UsageProblem)
    assert "0 jobs with the tag sweep=none" in str(done.exception)
