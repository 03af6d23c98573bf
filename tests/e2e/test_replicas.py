"""A job whose policy two inference processes serve: both play its rollouts, and it outlives one of them."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator

import httpx
import psutil
import pytest

from synth.bus.server.embedded import free_port
from tests.e2e.cli.conftest import Shell, eventually
from tests.e2e.platform import Platform, rl
from tests.e2e.task_apps import KEY, Served

pytestmark = pytest.mark.timeout(180)

SAMPLED = re.compile(r"^synth_engine_sampled_tokens_total\{.*\} (\S+)$", re.MULTILINE)


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """A cluster whose jobs are served twice."""
    shell = Shell(tmp_path_factory.mktemp("replicas"))
    (shell.folder / ".env").write_text(f"ENVIRONMENT_API_KEY={KEY}\n")
    shell.ok("up", "--detach", "--port", str(shell.port), SYNTH_SERVE_REPLICAS="2")
    try:
        shell.ok("models", "make", "tiny-qwen3")
        yield Platform(shell)
    finally:
        shell.run("down")


@pytest.fixture(scope="module")
def second(platform: Platform) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Another inference process of the cluster, and its port."""
    first = psutil.Process(platform.shell.processes()["inference"]["pid"])
    port, data = free_port(), platform.shell.folder / ".synth"
    own = {"SYNTH_PORT": str(port), "SYNTH_REPLICA": "inference-1", "SYNTH_WORK_DIR": str(data / "work" / "second")}
    with (data / "logs" / "second.log").open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "synth.synthd", "inference"], env=first.environ() | own, stdout=out, stderr=out
        )
    yield process, port
    process.kill()
    process.wait(10)


def sampled(port: int) -> float:
    """Tokens that an inference process has sampled for what it serves now."""
    try:
        text = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=5).text
    except httpx.TransportError:
        return 0.0
    return sum(float(n) for n in SAMPLED.findall(text))


def test_both_replicas_play_a_jobs_rollouts_and_the_job_outlives_one(
    platform: Platform, second: tuple[subprocess.Popen[bytes], int], letters_app: Served
):
    process, port = second
    first = platform.shell.processes()["inference"]["port"]
    job = platform.submit(rl("tiny-qwen3", letters_app.url, iterations=1000))
    eventually(lambda: sampled(first) > 0 and sampled(port) > 0, timeout=90)
    loaded = {e["replica"] for e in platform.events(job, "policy.loaded")}
    assert loaded == {"inference-0", "inference-1"}
    process.kill()
    process.wait(10)
    step = platform.job(job)["step"]
    # Two more: the first may have been collected before the replica died.
    eventually(lambda: platform.job(job)["step"] > step + 1, timeout=90)
    platform.client.cancel(job)
