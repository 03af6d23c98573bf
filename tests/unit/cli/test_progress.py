"""What a watcher makes of a job's events, and how it looks."""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from rich.console import Console

from synth.api.schemas import EventView
from synth.cli.tui.output import duration, number, sparkline
from synth.cli.tui.progress import Progress, describe, describe_new, exit_code
from synth.cli.tui.view import JobView
from synth.console.errors import ExitCode

START = datetime(2026, 1, 1, tzinfo=UTC)


def fold(*events: tuple[str, dict[str, Any]], after: int = 0) -> Progress:
    progress = Progress("job_1")
    for i, (type, data) in enumerate(events, start=after + 1):
        progress.apply(EventView(seq=i, type=type, time=START + timedelta(seconds=i), data=data))
    return progress


def step(n: int, of: int = 10, **values: float | None) -> tuple[str, dict[str, Any]]:
    return "train.step", {"step": n, "of": of, "values": values}


def drawn(progress: Progress) -> str:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(JobView(progress))
    return console.export_text()


BEGIN = (
    ("job.created", {"config_name": "rl.toml"}),
    ("job.validated", {"job": {"kind": "rl", "model": "tiny", "iterations": 10}, "warnings": []}),
    ("job.verified", {}),
    ("job.started", {"attempt": 1}),
)


def test_rewards_losses_and_figures_follow_the_steps():
    p = fold(*BEGIN, step(1, reward_mean=0.25, loss=1.0), step(2, reward_mean=0.5, loss=None))
    assert (p.kind, p.source, p.step, p.steps) == ("rl", "tiny", 2, 10)
    assert p.reward.values == [0.25, 0.5]
    assert p.loss.values[0] == 1.0
    assert p.seconds_left == 8.0


def test_rollouts_are_counted_against_the_oldest_batch_that_is_not_whole():
    ask = {"mode": "train", "seeds": [1, 2], "group_size": 2}
    one = [("rollout.completed", {"mode": "train", "iteration": 1})] * 4
    p = fold(*BEGIN, ("rollout.requested", ask | {"iteration": 1}), ("rollout.requested", ask | {"iteration": 2}))
    assert p.collecting == ("train", 0, 4)
    p = fold(*BEGIN, ("rollout.requested", ask | {"iteration": 1}), *one[:3])
    assert p.collecting == ("train", 3, 4)
    p = fold(*BEGIN, ("rollout.requested", ask | {"iteration": 1}), *one, step(1))
    assert p.collecting is None


def test_refills_count_on_beyond_what_was_asked_for():
    ask = ("rollout.requested", {"mode": "train", "iteration": 1, "seeds": [1, 2], "group_size": 2})
    done = [("rollout.completed", {"mode": "train", "iteration": 1, "index": i}) for i in (0, 1, 2, 5)]
    assert fold(*BEGIN, ask, *done).collecting == ("train", 4, 6)


def test_a_pause_is_shown_and_the_attempt_after_it_is_no_sign_of_a_death():
    pausing = fold(*BEGIN, step(1), step(2), ("job.pause_requested", {}))
    assert "pausing" in drawn(pausing)
    again = ("job.started", {"attempt": 2})
    assert fold(*BEGIN, ("job.pause_requested", {}), again).state == "pausing"
    paused = (*BEGIN, step(1), step(2), ("job.pause_requested", {}), ("job.paused", {"step": 2}))
    assert "⏸ paused" in drawn(fold(*paused))
    assert "synthctl jobs resume job_1" in drawn(fold(*paused))
    resumed = fold(*paused, ("job.resumed", {}), again)
    assert (resumed.state, resumed.warning, resumed.seconds_left) == ("started", "", None)
    assert "died" in fold(*BEGIN, again).warning
    assert describe(EventView(seq=1, time=START, type="job.paused", data={"step": 2})) == "paused after step 2"


def test_what_the_collapse_watch_sees_is_shown_with_its_numbers():
    problem = {"what": "the entropy is 0.01", "expected": "at least 0.08", "fix": "lower the rate", "where": ""}
    warned = ("train.warned", {"step": 9, "rule": "entropy_low", "problem": problem})
    text = "the entropy is 0.01; expected at least 0.08; lower the rate"
    assert text in drawn(fold(*BEGIN, step(9), warned))
    assert describe(EventView(seq=1, time=START, type="train.warned", data=warned[1])) == f"warning: {text}"
    paused = {"step": 9, "reason": text}
    assert describe(EventView(seq=1, time=START, type="job.paused", data=paused)) == f"paused after step 9: {text}"


def test_an_evaluation_job_is_one_batch_of_its_seeds():
    job = {"kind": "eval", "model": "m", "seeds": [1, 2, 3]}
    done = ("rollout.completed", {"mode": "eval", "iteration": 1})
    p = fold(("job.created", {}), ("job.validated", {"job": job}), done, done)
    assert p.collecting == ("eval", 2, 3)


def test_the_evaluations_of_a_job_are_a_curve_that_begins_with_the_source():
    evaluated = [
        ("eval.completed", {"step": k, "iteration": k, "values": {"reward_mean": r}}) for k, r in ((0, 0.1), (5, 0.4))
    ]
    p = fold(*BEGIN, evaluated[0], step(5, reward_mean=0.5), evaluated[1])
    assert (p.evaluation.values, p.evaluated_step) == ([0.1, 0.4], 5)
    assert "evaluation  ▁█  now 0.4  min 0.1  max 0.4  at step 5" in drawn(p)
    event = EventView(seq=1, time=START, type="eval.completed", data={**evaluated[0][1], "instances": 4})
    assert describe(event) == "evaluation of step 0 over 4 instances: reward_mean=0.1"
    # One of which nothing came back has no reward.
    assert fold(*BEGIN, ("eval.completed", {"step": 0, "values": {"rollouts": 0.0}})).evaluation.values == []


def test_figures_look_the_same_in_the_log_and_in_the_view():
    values = {"tokens_per_second": 33996.7, "loss": -0.00015741}
    line = describe(EventView(seq=1, time=START, type="train.step", data={"step": 1, "of": 2, "values": values}))
    assert line == "step 1/2 loss=-0.0001574 tokens_per_second=33,997"
    assert "tokens/s 33,997" in drawn(fold(*BEGIN, ("train.step", {"step": 1, "of": 2, "values": values})))


def test_a_later_attempt_does_not_undo_a_cancellation():
    p = fold(*BEGIN, ("job.cancel_requested", {}), ("job.started", {"attempt": 2}))
    assert p.state == "cancelling"
    assert "attempt 2" in p.warning


def test_a_watcher_may_begin_in_the_middle():
    p = fold(step(7, of=8, loss=0.5), ("job.succeeded", {"model": "m"}), after=100)
    assert (p.step, p.state, p.model, p.over) == (7, "succeeded", "m", True)


@pytest.mark.parametrize(
    ("state", "code"), [("succeeded", 0), ("failed", 3), ("rejected", 3), ("cancelled", 5), (None, 3)]
)
def test_the_exit_code_is_the_jobs_outcome(state: str | None, code: int):
    assert exit_code(state) == ExitCode(code)


@pytest.mark.parametrize("width", [40, 80, 120, 200])
def test_the_view_fits_every_width(width: int):
    p = fold(
        *BEGIN,
        ("rollout.requested", {"mode": "train", "iteration": 4, "seeds": [1], "group_size": 8}),
        *(step(n, reward_mean=n / 10, loss=1 / n, tokens_per_second=12_000.0, staleness_mean=0.4) for n in (1, 2, 3)),
        ("queue.waiting", {"need": "trainer", "pool": "default", "position": 3, "seconds": 61.0}),
    )
    console = Console(width=width, record=True, file=open("/dev/null", "w"), force_terminal=True)  # noqa: SIM115
    console.print(JobView(p))
    lines = console.export_text().splitlines()
    # What a terminal shows of Ctrl-C has room behind every line.
    assert all(len(line.rstrip()) <= width - 2 for line in lines)
    text = " ".join(lines)
    for expected in ("rl.toml", "✓ verified", "3/10", "reward", "loss", "12,000", "for a trainer", "2 jobs"):
        assert expected in text
    console.file.close()


def test_a_figure_stays_beside_its_name_where_the_line_breaks():
    values = {"tokens_per_second": 5399.0, "staleness_mean": 0.0, "ppo_kl": 0.0008369, "entropy": 0.6185}
    values |= {"grad_norm": 1.807, "lr": 0.0002}
    text = drawn(fold(*BEGIN, ("train.step", {"step": 1, "of": 10, "values": values})))
    assert "grad norm 1.807  lr 0.0002" in text


def test_a_validation_loss_has_a_curve_of_its_own_that_stays_between_two_validations():
    p = fold(*BEGIN, step(1, loss=2.0, validation_loss=2.5), step(2, loss=1.5, validation_loss=2.0), step(3, loss=1.0))
    assert "validation  █▁  now 2  min 2  max 2.5  of the loss" in drawn(p)


def test_the_time_to_the_end_is_known_after_the_first_iteration():
    p = fold(*BEGIN, ("rollout.requested", {"mode": "train", "iteration": 1, "seeds": [1], "group_size": 8}))
    assert p.seconds_left is None
    p = fold(*BEGIN, ("policy.loaded", {}), step(1, reward_mean=0.1))
    assert p.seconds_left == 2.0 * 9, "the start is at second 4, the step at second 6"
    assert "left" in drawn(p)


def test_rollouts_that_fail_the_same_way_are_one_warning_with_a_count():
    failed = ("rollout.failed", {"mode": "train", "iteration": 1, "problem": {"what": "the app is down"}})
    p = fold(*BEGIN, *[failed] * 64)
    assert p.warning == "64 rollouts failed: the app is down"
    assert p.failed == 64


def test_a_paused_job_collects_nothing():
    wanted = ("rollout.requested", {"mode": "train", "iteration": 2, "seeds": [1], "group_size": 8})
    created_at = (*BEGIN, step(1), ("job.pause_requested", {}), wanted)
    assert "rollouts" in drawn(fold(*created_at))
    assert "rollouts" not in drawn(fold(*created_at, ("job.paused", {"step": 1})))


def test_lines_say_what_happened_and_leave_out_what_only_lives():
    assert describe(EventView(seq=1, time=START, type="watch.heartbeat")) is None
    line = describe(
        EventView(seq=1, time=START, type="train.step", data={"step": 1, "of": 2, "values": {"loss": None}})
    )
    assert line == "step 1/2 loss=nan"
    assert describe(EventView(seq=1, time=START, type="some.new_fact")) == "some new fact"


def test_figures_are_short():
    assert sparkline([0, 1, 2, 3]) == "▁▃▆█"
    assert len(sparkline(list(range(1000)), width=20)) == 20
    assert sparkline([float("nan")]) == ""
    assert sparkline([5, 5]) == "▁▁"
    assert [number(v) for v in (None, 0.5, 3.0, 12345.6, 1.23456e-7)] == ["nan", "0.5", "3", "12,346", "1.235e-07"]
    assert [duration(s) for s in (5, 65, 7500, 90_000)] == ["5s", "1m05s", "2h05m", "1d1h"]


def test_an_event_that_the_gateway_could_not_read_is_told_by_its_type_alone():
    unread = EventView(seq=1, type="train.step", time=START, data='{"values": {"loss": null}}')
    assert describe(unread) == "train step"
    progress = fold(*BEGIN, step(1))
    progress.apply(unread)
    assert progress.step == 1


def trained(*steps: int, of: int = 10) -> tuple[str, dict[str, Any]]:
    return "train.progressed", {"of": of, "steps": [{"step": n, "values": {"loss": float(n)}} for n in steps]}


def said(*events: tuple[str, dict[str, Any]]) -> list[str]:
    progress, lines = Progress("job_1"), list[str]()
    for i, (type, data) in enumerate(events, start=1):
        event = EventView(seq=i, type=type, time=START + timedelta(seconds=i), data=data)
        shown = progress.shown
        progress.apply(event)
        lines += describe_new(event, shown=shown)
    return [line for line in lines if line.startswith("step")]


CRASH = (
    *BEGIN,
    trained(1, 2),
    trained(3),
    ("checkpoint.saved", {"step": 3}),
    *(step(n, loss=float(n)) for n in (1, 2, 3)),
    trained(4, 5),
    ("job.started", {"attempt": 2}),
    ("train.resumed", {"step": 3, "attempt": 2}),
    trained(4, 5, 6),
)


def test_a_step_is_shown_when_it_happens_and_not_again_when_it_is_saved_or_trained_again():
    lines = said(*CRASH, ("checkpoint.saved", {"step": 6}), *(step(n, loss=float(n)) for n in (4, 5, 6)), step(7))
    assert [int(line.split("/")[0].split()[1]) for line in lines] == [1, 2, 3, 4, 5, 6, 7]
    assert ["not saved yet" in line for line in lines] == [True] * 6 + [False]


def test_the_view_tells_steps_that_are_saved_from_those_that_are_not():
    before = fold(*CRASH[:-3])
    assert (before.step, before.trained) == (3, 5)
    assert "saved to 3" in drawn(before)
    again = fold(*CRASH[:-1])
    assert (again.step, again.trained, again.shown) == (3, 3, 5)
    assert "up to step 5 a second time" in drawn(again)
    assert fold(*CRASH).loss.values == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


def test_a_resume_that_was_asked_for_is_no_warning():
    resumed = ("train.resumed", {"step": 2, "attempt": 2})
    asked = (
        *BEGIN,
        step(1),
        step(2),
        ("job.paused", {"step": 2}),
        ("job.resumed", {}),
        ("job.started", {"attempt": 2}),
    )
    assert fold(*asked, resumed).warning == ""
    assert "resumed behind step 2" in fold(*BEGIN, step(2), ("job.started", {"attempt": 2}), resumed).warning


def test_how_far_a_dataset_is_is_shown_until_the_first_step():
    data = {"stage": "tokenise", "done": 1_240_000_000, "of": 3_000_000_000}
    event = ("train.progressed", {"of": 0, "attempt": 1, "steps": [], "data": data})
    p = fold(*BEGIN, event)
    assert "tokenising 1.2 of 3.0 GB" in drawn(p)
    assert "tokenising" not in drawn(fold(*BEGIN, event, step(1)))
    view = EventView(seq=9, type=event[0], time=START, data=event[1])
    assert describe(view) == "tokenising 1.2 of 3.0 GB"
    assert describe_new(view, shown=0) == ["tokenising 1.2 of 3.0 GB"]
