"""Crafter from pictures, to the end of its jobs: a model is taught by the expert's frames, then plays for rewards."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import pytest

from tests.e2e.crafter_jobs import (
    TURNS,
    assert_each_token_is_trained_once,
    figures_of,
    submit_rl,
    submit_sft,
)
from tests.e2e.platform import Platform
from tests.e2e.task_apps import app_process

pytestmark = [pytest.mark.timeout(1200), pytest.mark.soak]


@pytest.fixture(scope="module")
def app_url() -> Iterator[str]:
    with app_process("task_apps.crafter") as url:
        yield url


@pytest.fixture(scope="module")
def player(platform: Platform) -> str:
    """A model that plays somewhat as the expert does."""
    platform.shell.ok("models", "make", "tiny-qwen3-vl", "--name", "crafter-base")
    job = submit_sft(platform, "crafter-base")
    model = platform.succeeded(job)["model"]
    losses = [step["loss"] for step in platform.steps(job)]
    assert losses[-1] < 0.5 * losses[0]
    return model


@pytest.mark.parametrize("mode", ["lora", "full"])
def test_each_turn_of_a_game_seen_in_pictures_is_trained_once_on_what_the_engine_sampled(
    platform: Platform, app_url: str, player: str, mode: Literal["full", "lora"]
):
    job = submit_rl(platform, app_url, player, mode=mode)
    platform.succeeded(job)
    figures = figures_of(platform, job)
    assert all(kept > 0 for kept in figures.groups_kept), figures
    assert_each_token_is_trained_once(platform, job)
    assert figures.mismatch <= 1e-4, figures
    assert figures.canary <= 1e-4, figures
    [best] = platform.client.jobs.rollouts(job, limit=1, sort="best")
    told = platform.rollout(job, best.id)
    assert len(told["transcript"]["turns"]) == TURNS
