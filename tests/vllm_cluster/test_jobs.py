"""Jobs whose policies vLLM serves: they learn, agree with their trainer, and share an engine."""

from __future__ import annotations

import os
import re
import signal
import statistics
import urllib.request
from pathlib import Path

import psutil
import pytest

from tests.chaos.job_text import demo
from tests.e2e.cli.conftest import eventually
from tests.e2e.platform import Platform, rl
from tests.e2e.task_apps import Served
from tests.service.families.architectures import ARCHITECTURES, save_architecture
from tests.vllm_cluster.conftest import Tell
from tests.vllm_cluster.results import JOB_S, assert_agrees_with_its_trainer, succeeded

# A start of vLLM takes 25 s of CPU, and whoever tests may do other things meanwhile.
pytestmark = pytest.mark.timeout(900)


def seconds_to_serve(platform: Platform, job: str) -> list[float]:
    """From the publication of each version to its being served."""
    events = platform.log(job)
    at = {
        type: {e.data["version"]: e.time for e in events if e.type == type}
        for type in ("policy.published", "policy.loaded")
    }
    loaded = at["policy.loaded"]
    # The job may be over before its last version is loaded.
    return [(loaded[v] - published).total_seconds() for v, published in at["policy.published"].items() if v in loaded]


@pytest.fixture(scope="module")
def sft_model(platform: Platform, math_rows: Path) -> str:
    """A model that is right now and then: RL has a signal from its first step on."""
    job = platform.submit(demo("sft", total_steps=400), "--dataset", str(math_rows))
    return succeeded(platform, job)["model"]


def test_the_demo_learns_on_vllm_and_its_model_is_served_by_it(
    platform: Platform, sft_model: str, math_url: str, tell: Tell
):
    job = platform.submit(demo("rl", iterations_per_epoch=15), "--model", sft_model, "--task-url", math_url)
    model = succeeded(platform, job)["model"]
    reward = [step["reward_mean"] for step in platform.steps(job)]
    waits = seconds_to_serve(platform, job)
    tell(f"reward {[round(r, 2) for r in reward]}; published to served: median {statistics.median(waits):.3f} s")
    # 128 rollouts a step: without learning, the difference of these two means has a standard deviation of 0.03.
    assert statistics.mean(reward[-5:]) > statistics.mean(reward[:3]) + 0.1
    assert_agrees_with_its_trainer(platform, job, tell)
    assert "=" in platform.greedy(model, "What is 58 + 67?")


def test_adapters_of_one_base_share_an_engine_and_agree_at_another_temperature(
    platform: Platform, sft_model: str, math_url: str, tell: Tell
):
    def lora(seed: int) -> str:
        text = demo("rl", iterations_per_epoch=4, seed=seed, batch_size=8)
        text = text.replace('trainer_mode = "full"', 'trainer_mode = "lora"')
        text = text.replace("temperature = 1.0", "temperature = 0.7").replace(
            "learning_rate = 2e-4", "learning_rate = 2e-3"
        )
        return text + f"[lora]\nr = {8 * (seed + 1)}\nalpha = 16\n"

    jobs = [platform.submit(lora(seed), "--model", sft_model, "--task-url", math_url) for seed in (0, 1)]
    eventually(lambda: 2 in policies_by_host(platform), timeout=JOB_S)
    # A policy counts from when it waits for its host; the host's own metrics begin when it has started.
    eventually(lambda: "vllm:generation_tokens_total{" in metrics(platform), timeout=JOB_S)
    # A model that an earlier test has asked for may still be there, on a host of its own, or its process about to end.
    eventually(lambda: len(engine_processes(platform)) == len(policies_by_host(platform)) <= 2, timeout=JOB_S)
    for job in jobs:
        succeeded(platform, job)
        assert_agrees_with_its_trainer(platform, job, tell)
        assert platform.events(job, "policy.published")[0]["kind"] == "lora"


def test_a_job_whose_engine_process_is_killed_goes_on_with_a_new_one(platform: Platform, letters_app: Served):
    before = set(engine_processes(platform))
    # So many that the job is not over when the process is found.
    iterations = 20
    job = platform.submit(rl("tiny-qwen3", letters_app.url, iterations=iterations))
    eventually(lambda: len(platform.events(job, "policy.loaded")) > 1, timeout=JOB_S)
    [engine] = set(engine_processes(platform)) - before
    os.kill(engine, signal.SIGKILL)
    succeeded(platform, job)
    # The service and its trainer have outlived it: nothing was done twice.
    assert len(platform.steps(job)) == iterations
    assert len(platform.events(job, "job.started")) == 1
    assert engine not in engine_processes(platform)


@pytest.mark.parametrize("lora", [None, 4], ids=["full", "lora"])
def test_a_model_with_experts_agrees_with_its_trainer(
    platform: Platform, letters_app: Served, tell: Tell, lora: int | None
):
    folder = platform.shell.folder / ".synth" / "models" / "tiny-qwen3-moe"
    if not folder.exists():
        moe = next(a for a in ARCHITECTURES if a.name == "Qwen3-MoE")
        save_architecture(folder, moe, hidden_size=128, head_dim=32)
    job = platform.submit(rl("tiny-qwen3-moe", letters_app.url, lora=lora))
    succeeded(platform, job)
    assert len(platform.events(job, "policy.loaded")) >= 3
    assert_agrees_with_its_trainer(platform, job, tell)


def metrics(platform: Platform) -> str:
    """What the inference service tells Prometheus."""
    port = platform.shell.processes()["inference"]["port"]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as reply:
        return reply.read().decode()


def policies_by_host(platform: Platform) -> list[float]:
    """How many models there are on each vLLM host."""
    return [float(n) for n in re.findall(r"^synth_vllm_host_policies\{.*\} (\S+)$", metrics(platform), re.MULTILINE)]


def engine_processes(platform: Platform) -> list[int]:
    """The EngineCore processes of the inference service."""
    service = psutil.Process(platform.shell.processes()["inference"]["pid"])
    return [c.pid for c in service.children(recursive=True) if "EngineCore" in " ".join([c.name(), *c.cmdline()])]
