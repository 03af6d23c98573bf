"""A run that controls its concurrency: ahead but not stale, refilled where nothing can be learned, never held up."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from synth.taskapp.sdk import Episode, TaskApp
from tests.e2e.platform import Platform, rl
from tests.e2e.task_apps import KEY, Served, countdown, served

pytestmark = pytest.mark.timeout(1200)

AHEAD = 2
HUNG = 5


def any_text(*, flat: bool) -> TaskApp:
    """Two replies that differ are paid differently; where it is flat, two seeds in three pay the same for all."""
    app = TaskApp("letters", name="Any text", description="Pays for a property that nobody can guess.", keys=[KEY])

    @app.episode
    async def play(ep: Episode) -> None:
        reply = await ep.chat([{"role": "user", "content": f"Letters, please: {ep.seed % 10}"}])
        reward = 0.5 if flat and ep.seed % 3 else zlib.crc32(reply.content.encode()) / 2**32
        ep.step(obs=reply.content, reward=reward, done=True)

    return app


@pytest.fixture(scope="module")
def apps() -> Iterator[dict[str, Served]]:
    with ExitStack() as stack:
        yield {
            "flat": stack.enter_context(served(any_text(flat=True))),
            "hung": stack.enter_context(
                served(any_text(flat=False), fault=lambda n: "hang" if n % 16 == HUNG else None)
            ),
            "busy": stack.enter_context(served(any_text(flat=False), bears=3)),
            "ahead": stack.enter_context(served(countdown(pause_s=0.15))),
        }


@pytest.fixture(scope="module")
def jobs(platform: Platform, apps: dict[str, Served]) -> dict[str, str]:
    """A job for each app, all at once: they share one trainer."""
    apps_of = {name: app.url for name, app in apps.items()}
    on_policy, ahead = "async_level = 0", f"async_level = {AHEAD}\nmax_staleness = {AHEAD}"
    hung = "rollout_timeout_s = 600.0\ngroup_timeout_s = 4.0"
    busy = "max_retries = 8\nmax_concurrent_rollouts = 16"
    three = {"env": "countdown", "turns": 3, "rollout": "max_concurrent_rollouts = 12"}
    texts = {
        "flat": rl("tiny-qwen3", apps_of["flat"], iterations=2, training=f"{on_policy}\ndynamic_sampling = true"),
        "hung": rl("tiny-qwen3", apps_of["hung"], iterations=2, rollout=hung),
        "busy": rl("tiny-qwen3", apps_of["busy"], iterations=2, rollout=busy),
        "ahead": rl("tiny-qwen3", apps_of["ahead"], iterations=5, training=ahead, **three),
    }
    return {name: platform.submit(text) for name, text in texts.items()}


def test_groups_without_a_signal_are_refilled_from_the_jobs_own_seeds_up_to_three_batches(
    platform: Platform, jobs: dict[str, str]
):
    platform.succeeded(jobs["flat"])
    asked = [r for r in platform.events(jobs["flat"], "rollout.requested") if r["mode"] == "train"]
    drawn = [seed for r in asked for seed in (*r["seeds"], *r["refill_seeds"])]
    assert [len(r["refill_seeds"]) for r in asked] == [8, 8]
    assert len(set(drawn)) == len(drawn) == 24
    completed = platform.events(jobs["flat"], "rollout.completed")
    refilled = 0.0
    for k, (request, step) in enumerate(zip(asked, platform.steps(jobs["flat"]), strict=True), 1):
        seeds = [*request["seeds"], *request["refill_seeds"]]
        differs = [seed % 3 == 0 for seed in seeds]
        # As far into the refills as it takes for four groups that differ, and every seed up to there.
        played = 4
        while (wanted := min(12, 4 + played - sum(differs[:played]))) > played:
            played = wanted
        assert (step["rollouts_spent"], step["groups_refilled"]) == (4 * played, played - 4)
        assert {c["seed"] for c in completed if c["iteration"] == k} == set(seeds[:played])
        assert step["groups_kept"] == min(4, sum(differs[:played]))
        refilled += step["groups_refilled"]
    assert refilled > 0


def test_a_hung_episode_holds_its_group_up_no_longer_than_the_groups_deadline(platform: Platform, jobs: dict[str, str]):
    job = platform.succeeded(jobs["hung"])
    late = platform.events(jobs["hung"], "rollout.failed")
    assert job["rollouts"]["failed"] == len(late) >= 2
    assert all(f["late"] and "group_timeout_s" in f["problem"]["fix"] + f["problem"]["expected"] for f in late)
    for k, step in enumerate(platform.steps(jobs["hung"]), 1):
        groups = {f["group"] for f in late if f["iteration"] == k}
        assert (step["groups_kept"], step["groups_partial"]) == (4, len(groups))
        assert step["rollouts_failed"] == 0
        assert step["sequences"] == 16 - step["rollouts_late"]


def test_an_app_that_says_too_many_gets_fewer_and_loses_no_rollout(platform: Platform, jobs: dict[str, str]):
    job = platform.succeeded(jobs["busy"])
    assert job["rollouts"] == {"completed": 32, "failed": 0}
    steps = platform.steps(jobs["busy"])
    assert sum(step["concurrency_halved_overload"] for step in steps) >= 1
    assert all(1 <= step["concurrency_limit"] < 8 for step in steps)
    assert all(step["concurrency_mean"] <= 8 for step in steps)


def test_rollouts_that_span_versions_are_never_older_than_the_bound(platform: Platform, jobs: dict[str, str]):
    platform.succeeded(jobs["ahead"])
    rollouts: list[dict[str, Any]] = platform.events(jobs["ahead"], "rollout.completed")
    lags = [r["iteration"] - 1 - r["versions"][0] for r in rollouts]
    assert len(lags) == 5 * 16
    assert 0 < max(lags) <= AHEAD
    assert any(first < last for first, last in (r["versions"] for r in rollouts)), "new weights came in the middle"
    steps = platform.steps(jobs["ahead"])
    assert max(step["staleness_max"] for step in steps) <= AHEAD
    assert all(step["sequences_stale"] == 0 for step in steps)
    assert all(step["batches_ahead"] <= AHEAD for step in steps)
