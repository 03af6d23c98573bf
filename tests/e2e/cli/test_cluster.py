"""`up`, `down` and `status` with the real nats-server and the real services."""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path

import psutil
import pytest

from synth.local.cluster.plan import ProcessSpec
from synth.local.cluster.service_processes import ServiceProcesses
from tests.e2e.cli.conftest import Shell, eventually

FEW = ("--service", "gateway", "--service", "files")

pytestmark = pytest.mark.timeout(1200)


def up(shell: Shell, *arguments: str, **env: str):
    return shell.run("up", "--detach", "--port", str(shell.port), *FEW, *arguments, timeout=240, **env)


def test_up_returns_when_all_is_healthy_and_down_leaves_nothing_but_data(shell: Shell):
    done = up(shell)
    assert done.returncode == 0, done.stderr
    assert "SYNTH_ALLOW_LOOPBACK=1" in done.stderr, "what jobs may call is said"
    report = shell.json("status")
    assert report["state"] == "healthy"
    assert {p["name"] for p in report["processes"]} == {"nats", "gateway", "files"}
    assert (shell.folder / ".synth" / "cluster.json").stat().st_mode & 0o777 == 0o600
    assert (shell.folder / ".synth" / "nats" / "nats.conf").stat().st_mode & 0o777 == 0o600
    assert shell.json("jobs", "ls") == []
    assert shell.run("down").returncode == 0
    assert shell.alive() == []
    assert shell.run("down").returncode == 0
    assert shell.run("status").returncode == 7


def test_a_second_up_names_the_cluster_that_runs_and_harms_nothing(shell: Shell):
    up(shell)
    before = shell.json("status")
    second = up(shell)
    assert second.returncode == 1
    for expected in (str(before["supervisor_pid"]), before["url"], "synthctl down"):
        assert expected in second.stderr
    assert [p["pid"] for p in shell.json("status")["processes"]] == [p["pid"] for p in before["processes"]]


def test_a_port_in_use_is_one_error_and_starts_nothing(shell: Shell):
    with socket.socket() as other:
        other.bind(("127.0.0.1", shell.port))
        other.listen()
        done = up(shell)
    assert done.returncode == 1
    assert str(shell.port) in done.stderr
    assert "--port" in done.stderr
    assert shell.alive() == []
    assert not (shell.folder / ".env").exists()


def test_a_killed_process_comes_back_on_its_port(shell: Shell):
    up(shell)
    for name in ("gateway", "nats"):
        before = shell.processes()[name]
        os.kill(before["pid"], signal.SIGKILL)

        def back(name: str = name, pid: int = before["pid"]) -> bool:
            now = shell.processes()[name]
            return now["health"] == "healthy" and now["pid"] != pid

        eventually(back)
        after = shell.processes()[name]
        assert (after["port"], after["restarts"]) == (before["port"], 1)
    eventually(lambda: shell.json("status")["state"] == "healthy")
    assert shell.json("jobs", "ls") == []


def test_services_are_forks_of_one_process_and_come_back_when_it_is_killed(shell: Shell):
    up(shell)
    before = {name: psutil.Process(p["pid"]) for name, p in shell.processes().items() if name != "nats"}
    assert [" ".join(p.cmdline()).split()[:2] for p in before.values()] == [["synthd", name] for name in before]
    [parent] = {p.parent() for p in before.values()}
    assert parent is not None
    parent.kill()

    def back() -> bool:
        now = shell.processes()
        return all(now[name]["health"] == "healthy" and now[name]["pid"] != p.pid for name, p in before.items())

    eventually(back, timeout=240)
    # A killed process whose parent is gone stays in the list until the machine's init has taken note of it.
    _, left = psutil.wait_procs(before.values(), timeout=60)
    assert left == []


async def test_a_service_whose_parent_cannot_start_is_started_by_its_command(tmp_path: Path):
    processes = ServiceProcesses(tmp_path, {"PYTHONHOME": "/nowhere"}, tmp_path / "parents.log")
    command = [sys.executable, "-c", "print('started')"]
    spec = ProcessSpec("files", ("files",), command, {}, port=0, health_url="", log=tmp_path / "files.log")
    for _ in range(2):
        process = await processes.start(spec)
        assert await process.wait() == 0
    await processes.close()
    assert spec.log.read_text() == "started\n" * 2
    assert "encodings" in (tmp_path / "parents.log").read_text()


def test_what_a_killed_supervisor_left_is_ended_by_the_next_up_and_its_secrets_are_kept(shell: Shell):
    up(shell)
    (shell.folder / "d.jsonl").write_text(
        '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n'
    )
    file = shell.ok("files", "upload", "d.jsonl")
    before, pid = shell.state(), shell.json("status")["supervisor_pid"]
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: shell.json("status")["state"] == "orphaned")
    again = up(shell)
    assert again.returncode == 0, again.stderr
    assert "gateway" in again.stderr
    # The supervisor, nats-server, the two services and their parent.
    assert len(shell.alive()) == 5
    after = shell.state()
    for kept in ("users", "cluster_secret", "api_key", "environment_key"):
        assert after[kept] == before[kept]
    assert shell.ok("files", "get", file.strip(), "-o", "json")


def test_down_ends_what_a_killed_supervisor_left(shell: Shell):
    up(shell)
    os.kill(shell.json("status")["supervisor_pid"], signal.SIGKILL)
    assert shell.run("down").returncode == 0
    assert shell.alive() == []


def test_a_service_that_cannot_start_is_named_with_the_end_of_its_log(shell: Shell):
    done = up(shell, SYNTH_STREAM_BUFFER_BYTES="many")
    assert done.returncode == 1
    assert "gateway cannot start" in done.stderr
    assert "SYNTH_STREAM_BUFFER_BYTES" in done.stderr
    assert shell.alive() == []


def test_keys_that_the_user_has_already_are_the_ones_that_work(shell: Shell):
    env = shell.folder / ".env"
    env.write_text("# mine\nSYNTH_API_KEY=my-own-key\nBACKEND_BASE_URL=http://127.0.0.1:1/api\n")
    done = up(shell)
    assert done.returncode == 0, done.stderr
    assert "http://127.0.0.1:1/api" in done.stderr
    lines = env.read_text().splitlines()
    assert lines[:3] == ["# mine", "SYNTH_API_KEY=my-own-key", "BACKEND_BASE_URL=http://127.0.0.1:1/api"]
    assert len(lines) == 4
    assert lines[3].startswith("ENVIRONMENT_API_KEY=env_")
    eventually(lambda: shell.run("--backend", f"http://127.0.0.1:{shell.port}", "jobs", "ls").returncode == 0)


def test_ctrl_c_in_the_foreground_drains_everything(shell: Shell):
    process = shell.start("up", "--port", str(shell.port), *FEW)
    try:
        eventually(lambda: shell.json("status").get("state") == "healthy")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 0
    assert shell.alive() == []
    assert shell.run("status").returncode == 7
