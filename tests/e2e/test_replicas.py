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
from synth.local.cluster.plan import make_plan
from synth.local.cluster.state import StateFile
from tests.e2e.cli.conftest import Shell, eventually
from tests.e2e.platform import Platform, rl
from tests.e2e.task_apps import KEY, Served

pytestmark = pytest.mark.timeout(1200)

SAMPLED = re.compile(r"^synth_engine_sampled_tokens_total\{.*\} (\S+)$", re.MULTILINE)


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """A cluster whose jobs are served twice."""
    shell = Shell(tmp_path_factory.mktemp("replicas"))
    (shell.folder / ".env").write_text(f"ENVIRONMENT_API_KEY={KEY}\n")
    shell.ok("up", "--detach", "--port", str(shell.port), SYNTH_SERVE_REPLICAS="2")
    try:
        shell.make_model()
        yield Platform(shell)
    finally:
        shell.run("down")


@pytest.fixture(scope="module")
def second(platform: Platform) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Another inference process of the cluster, and its port."""
    port, data = free_port(), platform.shell.folder / ".synth"
    state = StateFile(data).read()
    assert state is not None
    [first] = [spec for spec in make_plan(state, data).services if spec.name == "inference"]
    own = {"SYNTH_PORT": str(port), "SYNTH_REPLICA": "inference-1", "SYNTH_WORK_DIR": str(data / "work" / "second")}
    with (data / "logs" / "second.log").open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "synth.synthd", "inference"], env=first.env | own, stdout=out, stderr=out
        )
    # A job that runs while a process starts slows the start down.
    eventually(lambda: healthy(port), timeout=240)
    yield process, port
    process.kill()
    process.wait(10)


def healthy(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/healthz", timeout=5).status_code == 200
    except httpx.TransportError:
        return False


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
    # Four at a time: all at once would begin at the process that has loaded the policy first.
    # It takes some of these times until what the dead process had is played by the other one.
    few = "rollout_timeout_s = 6.0\nmax_concurrent_rollouts = 4"
    job = platform.submit(rl("tiny-qwen3", letters_app.url, iterations=1000, rollout=few))
    eventually(lambda: sampled(first) > 0 and sampled(port) > 0, timeout=240)
    loaded = {e["replica"] for e in platform.events(job, "policy.loaded")}
    assert loaded == {"inference-0", "inference-1"}
    # The parent of training processes is a fork of the trainer, and has imported nothing again.
    children = psutil.Process(platform.shell.processes()["trainer"]["pid"]).children()
    assert ["".join(child.cmdline())[:14] for child in children] == ["synthd trainer"]
    process.kill()
    process.wait(10)
    step = platform.job(job)["step"]
    # Two more: the first may have been collected before the replica died.
    eventually(lambda: platform.job(job)["step"] > step + 1, timeout=240)
    platform.client.jobs.cancel(job)
