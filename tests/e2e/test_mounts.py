"""Services that have the mounts of their containers alone: jobs run, and what is not theirs stays shut."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from synth.events.catalogue import SERVICES
from synth.local.cluster.control import prepare_cluster
from synth.local.cluster.state import StateFile
from synth.local.devices.plan import DevicePlan
from tests.e2e.cli.conftest import Shell, eventually
from tests.e2e.mounted_services import can_mount, mounts
from tests.e2e.platform import Platform, rl, sft
from tests.e2e.task_apps import KEY, Served
from tests.judge_server import JudgeServer, scored

pytestmark = pytest.mark.timeout(1200)

JUDGED = """
[rubric.weights]
env = 1.0
event = 0.0
outcome = 1.0
[[rubric.outcome.criteria]]
id = "any"
description = "There is a reply."
[[judge.judges]]
model = "a-judge"
url = "{url}"
"""


@pytest.fixture(scope="module")
def mounted_platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """A cluster each of whose services sees the mounts of its container alone."""
    shell = Shell(tmp_path_factory.mktemp("mounted"))
    env_file, file = shell.folder / ".env", StateFile(shell.folder / ".synth")
    env_file.write_text(f"ENVIRONMENT_API_KEY={KEY}\n")
    with file.locked():
        prepare_cluster(file, SERVICES, port=shell.port, env_file=env_file, plan=lambda: (DevicePlan(), ""))
    shell.make_model()
    command = [sys.executable, "-m", "tests.e2e.mounted_services", str(shell.folder / ".synth")]
    with (shell.folder / "supervisor.log").open("wb") as log:
        supervisor = subprocess.Popen(command, cwd=Path(__file__).parents[2], stdout=log, stderr=log)
    try:
        eventually(lambda: supervisor.poll() is not None or shell.report()["state"] == "healthy")
        assert supervisor.poll() is None, (shell.folder / "supervisor.log").read_text()
        yield Platform(shell)
    finally:
        shell.run("down")
        supervisor.wait(60)


@pytest.mark.long
@pytest.mark.skipif(not can_mount(), reason="this machine refuses mounts in a user's own namespace (unshare -Urm)")
def test_jobs_of_sft_and_of_rl_with_a_judge_run_within_the_mounts(
    mounted_platform: Platform, letters_app: Served, rows: Path
):
    trained = mounted_platform.succeeded(mounted_platform.submit(sft(steps=4), "--dataset", str(rows)))["model"]
    with JudgeServer(scored(lambda call: 0.5)) as judge:
        job = mounted_platform.submit(rl(trained, letters_app.url, iterations=1, tail=JUDGED.format(url=judge.url)))
        found = mounted_platform.succeeded(job)
    assert found["judge"]["judged"] == found["rollouts"]["completed"]
    assert isinstance(mounted_platform.greedy(found["model"], "Letters, please: 3"), str)
    volumes = mounted_platform.shell.folder / ".synth" / "volumes"
    written = {volume.name for volume in volumes.iterdir() if any(p.is_file() for p in volume.rglob("*"))}
    assert {"orgs", "jobs", "judging", "gateway"} <= written
    # Nothing is written beside the volumes: the folder of `synthctl up` has no blobs and no scratch.
    assert not (volumes.parent / "blobs").exists()
    # Deleting is the gateway's, in the folders of others.
    mounted_platform.shell.ok("jobs", "rm", job, "--yes")
    eventually(lambda: not (volumes / "jobs" / job).exists())


def test_a_service_can_write_no_blobs_that_are_not_its_own():
    """The folders of the blob store that each service may write; the others it may read at most."""
    writable = {
        service: {Path(target).name for _, target, mode in mounts(service) if "/blobs/" in target and mode == "rw"}
        for service in SERVICES
    }
    assert writable == {
        "gateway": {"orgs", "jobs", "judging"},
        "validator": set(),
        "verifier": {"orgs"},
        "files": {"orgs"},
        "rollouts": {"jobs"},
        "inference": {"orgs", "jobs"},
        "judge": {"judging"},
        "trainer": {"jobs"},
    }
