"""What differs between jobs, and how it looks at every width."""

from __future__ import annotations

import io
import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from synth.api.schemas import JobWithConfig, Point, State
from synth.cli.comparison.configs import Difference, differences, settings_of
from synth.cli.comparison.figures import Figure, better_runs, drawn_metrics, figures
from synth.cli.tui.curves import Curve, draw
from synth.cli.tui.series import Series
from synth.cli.tui.tables.side_by_side import SideBySide
from synth.jobs.parse.toml import read_toml
from synth.jobs.resolve.job import Overrides, resolve_job
from synth.methods.job import job_to_data
from synth.models import Registry

TIME = datetime(2026, 1, 1, tzinfo=UTC)


def points(name: str, *values: float, first: int = 1) -> list[Point]:
    return [Point(name=name, step=first + i, value=v, time=TIME) for i, v in enumerate(values)]


def test_only_what_differs_is_told_by_its_table_and_key():
    seeds = {"start": 0, "count": 9, "listed": []}
    fewer = {**seeds, "count": 8}
    a = {"lr": 1e-3, "seed": 0, "lora": {"targets": ["q"]}, "evaluation": None, "train_seeds": seeds, "tags": {}}
    b = {"lr": 2e-3, "seed": 0, "lora": {"targets": ["k"]}, "train_seeds": fewer, "tags": {"x": 1}}
    assert differences([a, b]) == [
        Difference("lr", [1e-3, 2e-3]),
        Difference("[lora].targets", [["q"], ["k"]]),
        Difference("train_seeds", [seeds, fewer]),
        Difference("[tags].x", [None, 1]),
    ]
    assert differences([a, a, a]) == []


def test_settings_have_the_names_of_the_job_file(tmp_path: Path):
    (tmp_path / "tiny-qwen3").mkdir()
    (tmp_path / "tiny-qwen3" / "config.json").write_text('{"model_type": "qwen3"}')
    text = "[algorithm]\ntype = 'offline'\nmethod = 'sft'\nvariety = 'fft'\n"
    text += "[job]\nmodel = 'tiny-qwen3'\ndata = 'd.jsonl'\n[hyperparameters]\nlearning_rate = {}\n"
    flags, registry = Overrides(training_file="file_1", seed=7), Registry(tmp_path)
    jobs: list[JobWithConfig] = []
    for config in (text.format(1e-3), text.format(2e-3)):
        resolved = resolve_job(read_toml(config, name="a.toml"), overrides=flags, registry=registry)
        # Another version's default stays the job's own.
        values = job_to_data(resolved.job) | {"clip_norm": 0.5}
        jobs.append(_stored(config, resolved=values, origins=resolved.origins))
    tables = settings_of(jobs)
    assert differences(tables) == [Difference("[hyperparameters].learning_rate", [1e-3, 2e-3])]
    hyperparameters = tables[0]["hyperparameters"]
    assert (tables[0]["job"]["data"], hyperparameters["seed"], hyperparameters["grad_clip"]) == ("file_1", 7, 0.5)


def test_a_job_whose_file_this_version_refuses_has_its_resolved_settings():
    jobs = [_stored("[job]\nmodle = 1", resolved={"lr": lr}, origins={}) for lr in (1e-3, 2e-3)]
    assert differences(settings_of(jobs)) == [Difference("lr", [1e-3, 2e-3])]


def _stored(config: str, *, resolved: dict[str, Any], origins: dict[str, str]) -> JobWithConfig:
    return JobWithConfig(
        id="job_1",
        kind="sft",
        state=State.SUCCEEDED,
        created_at=TIME,
        updated_at=TIME,
        name="a.toml",
        last_seq=1,
        config=config,
        resolved=resolved,
        origins=origins,
    )


def test_the_better_run_of_each_figure_is_known_and_equal_runs_have_none():
    runs = [Figure(0.5, 9), Figure(0.9, 9), None]
    assert better_runs(runs, "reward_mean", kinds=["rl", "rl", "sft"]) == {1}
    assert better_runs(runs, "validation_loss", kinds=["rl", "rl", "sft"]) == {0}
    assert better_runs(runs, "loss", kinds=["sft", "sft", "sft"]) == {0}
    assert better_runs(runs, "loss", kinds=["rl", "rl", "rl"]) == set()
    assert better_runs([Figure(0.5, 9), Figure(0.5, 3)], "reward_mean", kinds=["rl", "rl"]) == set()


def test_four_jobs_fit_a_hundred_columns_and_one_long_value_takes_no_room_from_the_others():
    rows = [
        ("[rollout.sampling].temperature", ["1", "0.7", "0.5", "0.25"]),
        ("[model].source", [f"fft:tiny-qwen3:job_aed9871865554f{i}" for i in range(4)]),
        ("reward_mean", ["0.9 *", "0.25", "0.5", "0.125"]),
    ]
    console = Console(file=io.StringIO(), width=100, color_system=None)
    console.print(SideBySide(list("ABCD"), rows, ["", "", "", ""]))
    assert isinstance(console.file, io.StringIO)
    lines = [line.split() for line in console.file.getvalue().splitlines()]
    assert lines[0] == list("ABCD")
    assert ["[rollout.sampling].temperature", "1", "0.7", "0.5", "0.25"] in lines
    assert ["reward_mean", "0.9", "*", "0.25", "0.5", "0.125"] in lines
    assert ["D", "fft:tiny-qwen3:job_aed9871865554f3"] in lines


def test_the_best_figure_is_the_highest_reward_and_of_sft_the_lowest_loss():
    of_run = [*points("reward_mean", 0.1, 0.9, 0.5), *points("loss", 3.0, 1.0, 2.0)]
    assert figures(of_run, kind="rl") == {
        "reward_mean": Figure(0.5, 3, 0.9, 2),
        "loss": Figure(2.0, 3),
    }
    assert figures(of_run, kind="sft")["loss"] == Figure(2.0, 3, 1.0, 2)
    assert drawn_metrics([figures(of_run, kind="rl")], ["rl"]) == ["reward_mean"]


@pytest.mark.parametrize("width", [44, 80, 120])
def test_values_stand_side_by_side_or_below_each_other_and_are_never_cut(width: int):
    rows = [
        ("rollout.sampling.temperature", ["1", "0.7"]),
        ("model", ["fft:tiny-qwen3:job_aed9871865554f9b", "fft:tiny-qwen3:job_95c25457ef0c1f31"]),
    ]
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(SideBySide(["A", "B"], rows, ["cyan", "magenta"]))
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    text = " ".join(line.strip() for line in lines)
    assert "0.7" in text
    assert "fft:tiny-qwen3:job_aed9871865554f9b" in text


@pytest.mark.parametrize("width", [43, 79, 110])
def test_curves_fit_the_width_and_letters_tell_them_apart_without_colours(width: int):
    rising = Curve("A", range(300), [math.tanh(i / 80) for i in range(300)])
    short = Curve("B", [0, 10], [0.5, 0.25])
    plain = draw([rising, short], title="reward_mean", width=width, height=12, colours=False)
    assert max(map(len, plain.splitlines())) <= width
    assert {"A", "B"} <= set(plain)
    assert "\x1b" not in plain
    assert "299" in plain
    assert "\x1b" in draw([rising, short], title="reward_mean", width=width, height=12, colours=True)
    assert draw([Curve("A", [], [])], title="x", width=width, height=12, colours=False) == ""
    assert "⣀" in draw([Curve("A", [0, 1], [0.5, 0.5])], title="x", width=width, height=12, colours=False)


def test_a_series_is_of_the_whole_run_however_long_it_is():
    series = Series()
    for i in range(100_000):
        series.add(float(i))
    values = series.values
    assert len(values) <= 512
    assert values == sorted(values)
    assert values[0] < 1000
    assert values[-1] > 99_000
    assert (series.low, series.high, series.last) == (0.0, 99_999.0, 99_999.0)
    series.add(math.nan)
    assert math.isnan(series.last)
    assert len(series.values) == len(values)
