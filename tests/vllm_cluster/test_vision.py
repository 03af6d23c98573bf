"""Crafter played from pictures over HTTP, its policy served by vLLM: the tokens and positions of the trainer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import pytest

from tests.e2e.crafter_jobs import (
    assert_each_token_is_trained_once,
    figures_of,
    submit_rl,
    submit_sft,
)
from tests.e2e.platform import Platform
from tests.e2e.task_apps import app_process
from tests.vllm_cluster.conftest import Tell
from tests.vllm_cluster.results import assert_agrees_with_its_trainer, succeeded

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def app_url() -> Iterator[str]:
    with app_process("task_apps.crafter") as url:
        yield url


@pytest.fixture(scope="module")
def player(platform: Platform) -> str:
    """A model that plays somewhat as the expert does; its heads are as wide as vLLM wants them on a CPU."""
    platform.shell.ok("models", "make", "tiny-qwen3-vl", "--name", "crafter-base", "--head-dim", "32")
    return succeeded(platform, submit_sft(platform, "crafter-base"))["model"]


@pytest.mark.parametrize("mode", ["lora", "full"])
def test_what_vllm_samples_of_pictures_is_trained_once_and_agrees_with_the_trainer(
    platform: Platform, app_url: str, player: str, mode: Literal["full", "lora"], tell: Tell
):
    job = submit_rl(platform, app_url, player, mode=mode)
    succeeded(platform, job)
    tell(f"{mode}: {figures_of(platform, job)}")
    assert_agrees_with_its_trainer(platform, job, tell)
    assert_each_token_is_trained_once(platform, job)
