"""Replies that take longer than their rollout has: cut off, kept and trained."""

from __future__ import annotations

import pytest

from synth.taskapp.sdk import Episode, TaskApp
from tests.e2e.platform import Platform, rl
from tests.e2e.task_apps import KEY, served

pytestmark = [pytest.mark.timeout(1200), pytest.mark.long]


def essays() -> TaskApp:
    """One turn, of a few tokens for every other rollout; the others' replies cannot end before their time does."""
    app = TaskApp("essays", name="Essays", description="Short ones and long ones.", keys=[KEY])
    begun = 0
    endless = {"type": "array", "items": {"enum": ["a", "b", "c", "d"]}, "minItems": 4000}
    schema = {"type": "json_schema", "json_schema": {"name": "essay", "strict": True, "schema": endless}}

    @app.episode
    async def play(ep: Episode) -> None:
        nonlocal begun
        begun += 1
        asked = {"response_format": schema} if begun % 2 else {"max_tokens": 8}
        reply = await ep.chat([{"role": "user", "content": f"Tell me of {ep.seed % 10}"}], **asked)
        ep.step(obs=reply.content, reward=len(reply.content) % 7 / 7, done=True)

    return app


def test_a_reply_that_is_cut_off_when_its_rollouts_time_is_over_is_trained(platform: Platform) -> None:
    with served(essays()) as app:
        text = rl("tiny-qwen3", app.url, env="essays", iterations=2, rollout="rollout_timeout_s = 5.0\nmax_retries = 0")
        job = platform.submit(text.replace("max_tokens = 12", "max_tokens = 4000"))
        platform.succeeded(job)
    assert platform.events(job, "rollout.failed") == []
    rollouts = platform.events(job, "rollout.completed")
    assert {(r["tries"], r["outcome"]) for r in rollouts} == {(1, "ok")}
    short = [r for r in rollouts if r["completion_tokens"] <= 8]
    cut_off = [r for r in rollouts if r["completion_tokens"] > 8 and r["seconds"] >= 5]
    assert (len(short), len(cut_off)) == (len(rollouts) // 2, len(rollouts) // 2)
    assert all(r["completion_tokens"] < 4000 for r in cut_off)
    steps = platform.steps(job)
    assert all(step["groups_kept"] > 0 and step["completion_truncated_rate"] > 0 for step in steps)
