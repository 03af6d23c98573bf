"""`synth-ai train`, both versions, as their users run them: SFT, then RL from its model, and what can go wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clients.configs import rl, sft
from tests.clients.conftest import BASE
from tests.clients.published import Published
from tests.e2e.platform import Platform

pytestmark = pytest.mark.timeout(1200)
_JOB = r"(job_[0-9a-z]+)"
_MODELS: dict[str, str] = {}


def train(synth_ai: Published, sums: Path) -> str:
    """The model that this version's own `train --type sft` makes, polled to the end; each version makes one."""
    key = synth_ai.venv.name
    if key not in _MODELS:
        done = synth_ai.train("sft", synth_ai.write(sft(str(sums))))
        assert done.code == 0, done.text
        assert "Final status: succeeded" in done.text, done.text
        _MODELS[key] = f"fft:{BASE}:{done.found(f'Job created .id={_JOB}')}"
    return _MODELS[key]


@pytest.fixture
def trained(synth_ai: Published, some_sums: Path) -> str:
    """A model that either version made."""
    return next(iter(_MODELS.values()), "") or train(synth_ai, some_sums)


def test_sft_runs_to_its_end_and_the_model_is_there_to_talk_to(
    synth_ai: Published, some_sums: Path, platform: Platform
):
    trained = train(synth_ai, some_sums)
    model = platform.api.get(f"/api/learning/models/{trained}").json()
    assert (model["id"], model["base_model"]) == (trained, BASE)
    # "12+34=46" where it works the sum out, "at least 40" where it estimates: it was taught both.
    assert any(digit in platform.greedy(trained, "12+34=") for digit in "0123456789")


def test_rl_goes_on_from_such_a_model_polled_to_the_end(
    synth_ai: Published, trained: str, letters_url: str, platform: Platform
):
    done = synth_ai.train("rl", synth_ai.write(rl(trained)), task_url=letters_url)
    assert done.code == 0, done.text
    assert "Final status: succeeded" in done.text, done.text
    created = done.found(f'"job_id": "{_JOB}"')
    job = platform.api.get(f"/api/rl/jobs/{created}").json()
    assert job["fine_tuned_model"] == f"rl:{BASE}:{job['job_id']}"
    assert job["tags"] == {"made_by": "test-clients"}


def test_without_polling_the_client_leaves_at_once_and_the_job_goes_on(
    synth_ai: Published, sums: Path, platform: Platform
):
    done = synth_ai.train("sft", synth_ai.write(sft(str(sums))), "--no-poll", "--examples", "64")
    assert done.code == 0, done.text
    assert "polling disabled" in done.text
    job = done.found(f"Started job {_JOB}")
    assert platform.succeeded(job)["resolved"]["training_file"].startswith("file_")


def test_the_same_idempotency_key_twice_is_one_job(
    synth_ai: Published, trained: str, letters_url: str, platform: Platform
):
    config = synth_ai.write(rl(trained, iterations=1))
    flags = ("--no-poll", "--idempotency", f"once-{synth_ai.venv.name}")
    first, second = (synth_ai.train("rl", config, *flags, task_url=letters_url) for _ in range(2))
    assert first.code == second.code == 0, first.text + second.text
    created = rf"Created job {_JOB}"
    assert first.found(created) == second.found(created)
    platform.succeeded(first.found(created))


@pytest.mark.parametrize("kind", ["sft", "rl"])
def test_a_wrong_key_is_refused_in_words(synth_ai: Published, sums: Path, kind: str):
    config = synth_ai.write(sft(str(sums)) if kind == "sft" else rl(BASE))
    done = synth_ai.train(kind, config, "--no-poll", api_key="sk_of_nobody")
    assert done.code != 0
    assert "401" in done.text
    assert "this API key is not known here" in done.text


def test_a_dead_task_app_is_named_before_any_job_is_made(synth_ai: Published, platform: Platform):
    before = [*platform.client.jobs.list()]
    done = synth_ai.train("rl", synth_ai.write(rl(BASE)), "--no-poll", task_url="http://127.0.0.1:9")
    assert done.code != 0
    assert "cannot be reached" in done.text, done.text
    assert [*platform.client.jobs.list()] == before


def test_the_tail_of_a_jobs_log_is_its_newest_events(published: Callable[[str], Published], platform: Platform):
    # The older version has no such command.
    client = published("synth-ai-0.2.23")
    id = platform.api.post("/api/jobs", json={"config": "this is no job"}).json()["id"]
    platform.outcome(id)
    # The client writes of other things first.
    newest, everything = (
        [event["type"].rpartition(".")[2] for event in json.loads(text[text.index("[\n") :])]
        for text in (client.status("jobs", "logs", id, *tail, "--json").text for tail in (("--tail", "1"), ()))
    )
    assert (newest, everything) == (["failed"], ["created", "failed"])
