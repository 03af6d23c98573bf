"""The published client's own job files for Qwen3-VL, run by the client itself: a tiny model that sees stands in.

What is changed of them is said here: their paths, their sizes, and what the client itself refuses.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import tomlkit

from synth.bus.server.embedded import free_port
from task_apps.colours.dataset import rows
from tests.clients.conftest import ENVIRONMENT_KEY
from tests.clients.published import Published
from tests.e2e.cli.conftest import eventually
from tests.e2e.platform import Platform

pytestmark = pytest.mark.timeout(600)
SFT_BASE, RL_BASE = "Qwen/Qwen3-VL-2B-Instruct", "Qwen/Qwen3-VL-4B-Instruct"
_JOB = r"(job_[0-9a-z]+)"


@pytest.fixture(scope="module")
def client(published: Callable[[str], Published], platform: Platform) -> Published:
    """Version 0.2.23, and the bases of its examples on the cluster."""
    platform.shell.ok("models", "make", "tiny-qwen3-vl")
    for base in (SFT_BASE, RL_BASE):
        platform.shell.ok("models", "alias", base, "tiny-qwen3-vl")
    return published("synth-ai-0.2.23")


@pytest.fixture(scope="module")
def gallery_url(platform: Platform) -> Iterator[str]:
    """A task app that was written without our SDK, a process of its own."""
    port = free_port()
    command = [sys.executable, "-m", "tests.clients.plain_vision_app", str(port)]
    process = subprocess.Popen(command, env={**os.environ, "ENVIRONMENT_API_KEY": ENVIRONMENT_KEY})
    url = f"http://127.0.0.1:{port}"
    try:
        eventually(lambda: _answers(url))
        yield url
    finally:
        process.terminate()
        process.wait(10)


def example(client: Published, name: str) -> dict[str, Any]:
    """One of the job files that the client's wheel has for Qwen3-VL."""
    folder = client.venv / "lib" / "python3.11" / "site-packages" / "examples" / "qwen_vl" / "configs"
    return tomllib.loads((folder / name).read_text())


def test_the_clients_sft_example_trains_an_adapter_with_the_projector(client: Published, platform: Platform):
    config = example(client, "sft_qwen3_vl_2b_test.toml")
    assert "mm_projector" in config["hyperparameters"]["lora_target_modules"]
    file = Path(client.write("".join(f"{json.dumps(row)}\n" for row in rows(32, seed=0)), "pictures.jsonl"))
    config["job"]["data"] = str(file)
    done = client.train("sft", client.write(tomlkit.dumps(config)))
    assert done.code == 0, done.text
    assert "Final status: succeeded" in done.text, done.text
    job = platform.api.get(f"/api/jobs/{done.found(f'Job created .id={_JOB}')}").json()
    assert job["resolved"]["vision"]["max_images_per_message"] == 1
    assert job["model"].startswith(f"peft:{SFT_BASE}:")


def test_the_clients_rl_example_plays_an_app_that_shows_images(client: Published, platform: Platform, gallery_url: str):
    config = example(client, "crafter_rl_vision_qwen3vl4b.toml")
    # The client itself refuses a judge without provider and model.
    del config["judge"]
    # One of each, and replies as long as a tiny model's context bears.
    config["rollout"] |= {"max_turns": 2, "env_name": "gallery"}
    config["rollout"]["policy_config"] |= {"max_tokens": 12, "max_llm_calls": 2}
    config["rollout"]["env_config"] = {}
    config["training"] |= {"iterations_per_epoch": 2, "max_turns": 2, "group_size": 4}
    config["evaluation"] |= {"instances": 2, "every_n_iters": 1, "seeds": [0, 1]}
    done = client.train("rl", client.write(tomlkit.dumps(config)), task_url=gallery_url)
    assert done.code == 0, done.text
    assert "Final status: succeeded" in done.text, done.text
    job = done.found(f'"job_id": "{_JOB}"')
    played = platform.api.get(f"/api/jobs/{job}/rollouts", params={"limit": 1}).json()["data"][0]
    told = platform.api.get(f"/api/jobs/{job}/rollouts/{played['id']}").json()
    # image_only_mode: an image, and no text.
    assert [part["type"] for part in told["transcript"]["turns"][0]["messages"][0]["content"]] == ["image"]
    assert all(step["mismatch_max_lag0"] <= 1e-4 for step in platform.steps(job) if "mismatch_max_lag0" in step)
    evaluation = f"""
        [eval]
        model = "{RL_BASE}"
        seeds = "0-3"
        task_app_url = "{gallery_url}"
        env_name = "gallery"
        max_turns = 2
        max_tokens = 12
        use_vision = true
    """
    ended = platform.succeeded(platform.shell.ok("eval", platform.write(evaluation, "vision"), "--detach").strip())
    assert ended["eval"]["rollouts"] == 4


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/").status_code == 200
    except httpx.TransportError:
        return False
