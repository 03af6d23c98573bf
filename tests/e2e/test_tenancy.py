"""Two organisations on one cluster: what one has made, no job and no call of the other can use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.cli.conftest import eventually
from tests.e2e.platform import JOB_S, Platform, rl, sft
from tests.e2e.task_apps import KEY, Served, letters, served

pytestmark = pytest.mark.timeout(1200)

EVAL = """
[eval]
model = "{model}"
seeds = "0-1"
env_name = "letters"
"""


@pytest.fixture
def stranger(platform: Platform) -> httpx.Client:
    """A user of another organisation."""
    made = platform.api.post("/api/organisations", json={"name": "stranger"}).raise_for_status().json()
    headers = {"Authorization": f"Bearer {made['first_key']['key']}"}
    return httpx.Client(base_url=platform.api.base_url, headers=headers, timeout=60)


def end_of(user: httpx.Client, job: str) -> dict[str, Any]:
    """The job when it has ended: its stream breaks off then."""
    with user.stream(
        "GET", f"/api/jobs/{job}/events", headers={"Accept": "text/event-stream"}, timeout=JOB_S
    ) as events:
        for _ in events.iter_lines():
            pass
    return user.get(f"/api/jobs/{job}").raise_for_status().json()


def test_anothers_model_and_file_are_of_no_use(
    platform: Platform, stranger: httpx.Client, rows: Path, letters_app: Served
):
    job = platform.submit(sft(steps=2), "--dataset", rows.name)
    model = platform.succeeded(job)["model"]
    file = platform.api.get("/api/files").json()["data"][0]["id"]
    chat = {"messages": [{"role": "user", "content": "1 + 2?"}], "max_tokens": 4}
    assert platform.api.post("/v1/chat/completions", json=chat | {"model": model}).status_code == 200
    # The replica has it loaded, for its owner alone.
    for name in (model, model.replace("fft:", "ft:"), job):
        reply = stranger.post("/v1/chat/completions", json=chat | {"model": name})
        assert reply.status_code == 404, reply.text
    assert stranger.post("/v1/chat/completions", json=chat | {"model": "tiny-qwen3"}).status_code == 200

    submissions = {
        "file": {"config": sft(steps=2), "training_file": file},
        "source": {"config": sft(steps=2, model=model), "training_file": file},
        "eval": {"config": EVAL.format(model=model), "task_url": letters_app.url},
    }
    for what, body in submissions.items():
        submitted = stranger.post("/api/jobs", json=body | {"config_name": f"{what}.toml"}).raise_for_status().json()
        ended = end_of(stranger, submitted["id"])
        assert ended["state"] in ("rejected", "failed"), (what, ended["state"])
        said = " ".join(problem["what"] for problem in ended["problems"])
        assert "there is no file" in said or "has not been published" in said, (what, said)


def test_evaluations_that_hang_leave_a_place_for_a_job_of_another_organisation(
    platform: Platform, stranger: httpx.Client, letters_app: Served
):
    key = {"key": KEY, "url": letters_app.url}
    stranger.post("/api/environment-keys", json=key).raise_for_status()
    with served(letters(), fault=lambda n: "hang") as hung:
        body = {"config": EVAL.format(model="tiny-qwen3"), "config_name": "eval.toml", "task_url": hung.url}
        hanging = [platform.api.post("/api/jobs", json=body).raise_for_status().json()["id"] for _ in range(18)]
        eventually(lambda: [platform.job(id)["state"] for id in hanging].count("started") == 2)
        config = rl("tiny-qwen3", letters_app.url, iterations=1)
        job = stranger.post("/api/jobs", json={"config": config, "config_name": "rl.toml"}).raise_for_status().json()
        assert end_of(stranger, job["id"])["state"] == "succeeded"
        states = [platform.job(id)["state"] for id in hanging]
        assert set(states) == {"started", "verified"}, states
        for id in hanging:
            platform.api.post(f"/api/jobs/{id}/cancel").raise_for_status()
        for id in hanging:
            assert platform.outcome(id)[1]["state"] == "cancelled"
