"""The `openai` SDK, as it is installed, drives the same jobs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.clients.conftest import BASE
from tests.clients.published import Published

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="session")
def seen(published: Callable[[str], Published], some_sums: Path, letters_url: str) -> dict[str, Any]:
    return published("openai").script("openai_jobs.py", str(some_sums), BASE, letters_url)


def test_a_file_is_uploaded_and_processed(seen: dict[str, Any]):
    assert (seen["file"]["object"], seen["file"]["purpose"], seen["file"]["status"]) == (
        "file",
        "fine-tune",
        "processed",
    )


def test_a_supervised_job_makes_a_model(seen: dict[str, Any]):
    job = seen["sft_job"]
    assert job["status"] == "succeeded", job["error"]
    assert job["fine_tuned_model"] == f"fft:{BASE}:{job['id']}"
    assert (job["object"], job["seed"], job["metadata"]) == ("fine_tuning.job", 7, {"who": "openai"})
    assert job["method"]["supervised"]["hyperparameters"]["n_epochs"] == 1
    assert job["finished_at"] >= job["created_at"]


def test_its_events_come_newest_first(seen: dict[str, Any]):
    times = [event["created_at"] for event in seen["events"]]
    assert times == sorted(times, reverse=True)
    assert {event["type"] for event in seen["events"]} == {"message", "metrics"}


def test_its_checkpoints_name_models(seen: dict[str, Any]):
    assert seen["checkpoints"]
    for checkpoint in seen["checkpoints"]:
        step = checkpoint["step_number"]
        assert checkpoint["fine_tuned_model_checkpoint"] == f"{seen['sft_job']['fine_tuned_model']}:step_{step}"
        assert checkpoint["metrics"]["train_loss"] > 0


def test_the_model_answers_whole_and_in_pieces(seen: dict[str, Any]):
    assert seen["said"]
    assert seen["streamed"] == seen["said"]
    assert seen["sft_job"]["fine_tuned_model"] in seen["models"]


def test_a_reinforcement_job_goes_on_from_it(seen: dict[str, Any]):
    job = seen["learned"]
    assert job["status"] == "succeeded", job["error"]
    assert job["fine_tuned_model"] == f"rl:{BASE}:{job['id']}"
    assert any("reward" in event["message"] for event in seen["learned_events"])


def test_another_job_is_cancelled(seen: dict[str, Any]):
    assert seen["cancelled"][1] == "cancelled"


def test_mistakes_are_named(seen: dict[str, Any]):
    assert "gpt-9" in seen["refused"]["unknown model"]
    assert "file_0" in seen["refused"]["unknown file"]
    assert "NotFoundError" in seen["refused"]["unknown job"]
