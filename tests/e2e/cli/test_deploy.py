"""`synthctl deploy`: a process stays, comes back, and is replaced without a call that fails; an image has no key."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from synth.bus.server.embedded import free_port
from synth.local.processes.running import start_of
from synth.runtime.environment.env_file import read_env_file
from tests.e2e.cli.conftest import eventually
from tests.unit.cli.test_command_line import CLEAN, synthctl
from tests.unit.cli.test_serve import ONE

#: What dies where it is served, and not where it is looked at before.
DIES = "import os, sys\nif any('worker' in word for word in sys.orig_argv):\n    os._exit(3)\n"
#: What still takes calls for a second after it was told to end.
ENDS_LATE = """
import threading, uvicorn
at_once = uvicorn.Server.handle_exit
uvicorn.Server.handle_exit = lambda *told: threading.Timer(1.0, at_once, told).start()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "app.py").write_text(ONE.format(name="one"))
    yield tmp_path
    synthctl("deploy", "stop", "one", cwd=tmp_path)
    states = (tmp_path / ".synth" / "deployments").glob("*/state.json")
    assert [file for file in states if json.loads(file.read_text())["pid"] is not None] == []


def deploy(folder: Path, *flags: str, app: str = "one") -> str:
    run = synthctl("deploy", app, *flags, cwd=folder)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def shown(folder: Path) -> dict[str, Any]:
    [one] = json.loads(synthctl("deploy", "ls", "-o", "json", cwd=folder).stdout)
    return one


def ask(url: str, key: str = "", path: str = "/") -> int:
    return httpx.get(url + path, headers={"X-API-Key": key}, trust_env=False, timeout=30).status_code


def test_it_outlives_its_command_comes_back_from_a_crash_and_is_replaced_while_it_is_called(folder: Path):
    url = deploy(folder)
    key = read_env_file(folder / ".env")["ENVIRONMENT_API_KEY"]
    assert (ask(url, key, "/health"), ask(url, "wrong", "/health")) == (200, 400)
    first = shown(folder)
    assert os.getsid(first["supervisor_pid"]) != os.getsid(0)
    files = [*(folder / ".synth" / "deployments" / "one").iterdir()]
    assert {file.name for file in files} == {"state.json", "app.log", "command.lock", "supervisor.lock"}
    assert [file for file in files if key in file.read_text()] == []

    os.kill(first["pid"], signal.SIGKILL)
    # Asked while nothing runs: it waits for what comes back.
    assert ask(url) == 200
    eventually(lambda: shown(folder)["health"] == "healthy")
    second = shown(folder)
    assert (second["url"], second["restarts"]) == (url, 1)
    assert second["pid"] != first["pid"]

    late = ENDS_LATE + ONE.format(name="one")
    (folder / "app.py").write_text(late)
    assert deploy(folder) == url
    second = shown(folder)
    (folder / "app.py").write_text(late.replace('description="d"', 'description="new"'))
    state = folder / ".synth" / "deployments" / "one" / "state.json"
    before = json.loads(state.read_text())
    answers, states, over = list[int](), list[dict[str, Any]](), threading.Event()

    def call() -> None:
        while not over.is_set():
            answers.append(ask(url))

    def watch() -> None:
        while not over.wait(0.01):
            states.append(json.loads(state.read_text()))

    threads = [threading.Thread(target=work) for work in (call, watch)]
    for thread in threads:
        thread.start()
    assert deploy(folder) == url
    over.set()
    for thread in threads:
        thread.join()
    assert set(answers) == {200}
    # The new process is on record before the old one has ended, and the order is answered when it has.
    pids = {found["pid"] for found in states if found["order"] == before["order"]}
    assert pids == {second["pid"], shown(folder)["pid"]}
    infos = [httpx.get(f"{url}/info", headers={"X-API-Key": key}, trust_env=False).json() for _ in range(30)]
    assert {info["service"]["task"]["description"] for info in infos} == {"new"}
    third = shown(folder)
    assert (third["supervisor_pid"], third["restarts"]) == (second["supervisor_pid"], 0)
    eventually(lambda: start_of(second["pid"]) is None)

    (folder / "app.py").write_text(DIES + ONE.format(name="one"))
    refused = synthctl("deploy", "one", cwd=folder)
    assert (refused.returncode, refused.stdout) == (1, "")
    words = f"one was not deployed: it ended with code 3 before it was healthy; the one before still runs at {url}"
    assert words in refused.stderr
    assert shown(folder)["pid"] == third["pid"]
    assert ask(url) == 200

    ended = synthctl("deploy", "stop", "one", cwd=folder)
    assert (ended.returncode, ended.stderr) == (0, "one is stopped\n")
    assert [start_of(pid) for pid in (third["pid"], third["supervisor_pid"])] == [None, None]
    log = synthctl("deploy", "logs", "one", cwd=folder).stdout
    assert "it ended with SIGKILL; restarting in 0.2 s" in log
    assert log.splitlines()[-1].endswith("deploy: stopped")


@pytest.mark.long
def test_one_that_crashes_more_often_than_it_may_is_given_up_and_can_be_deployed_again(folder: Path):
    url = deploy(folder, "--max-restarts", "0")
    os.kill(shown(folder)["pid"], signal.SIGKILL)
    eventually(lambda: shown(folder)["health"] == "failed")
    listed = synthctl("deploy", "ls", cwd=folder)
    assert listed.returncode == 1
    assert "it ended with SIGKILL, 1 times in a row: it is given up" in listed.stdout
    with pytest.raises(httpx.ConnectError):
        ask(url)
    assert deploy(folder) == url


@pytest.mark.long
def test_what_a_killed_supervisor_left_is_seen_and_replaced(folder: Path):
    url = deploy(folder)
    before = shown(folder)
    os.kill(before["supervisor_pid"], signal.SIGKILL)
    eventually(lambda: shown(folder)["health"] == "orphaned")
    assert ask(url) == 200
    assert deploy(folder) == url
    after = shown(folder)
    assert after["health"] == "healthy"
    assert start_of(before["pid"]) is None


@pytest.mark.long
@pytest.mark.parametrize(
    ("source", "words"),
    [
        (DIES + ONE.format(name="one"), "one was not deployed: it ended with code 3 before it was healthy"),
        ("1 / 0\n" + ONE.format(name="one"), "app.py:1: importing it raised ZeroDivisionError"),
        (ONE.format(name="one").partition("@")[0], "has no episode"),
    ],
)
def test_one_that_does_not_come_up_says_why_and_leaves_nothing(source: str, words: str, folder: Path):
    (folder / "app.py").write_text(source)
    run = synthctl("deploy", "app.py", cwd=folder)
    assert run.returncode != 0
    assert words in run.stderr
    assert "Traceback" not in run.stderr


NEEDY = """
from pathlib import Path
import rules
from PIL import Image
WORDS = Path("data/words.txt").read_text()
"""


def image(folder: Path, *flags: str, path: str = "") -> subprocess.CompletedProcess[str]:
    return synthctl("deploy", "one", "--to", "docker", *flags, cwd=folder, PATH=f"{path or folder / 'nothing'}")


@pytest.mark.long
def test_an_image_has_the_app_and_what_it_asks_for_and_no_key(folder: Path):
    (folder / "app.py").write_text(NEEDY + ONE.format(name="one"))
    (folder / "rules.py").write_text("")
    (folder / "unused.py").write_text("")
    (folder / "data").mkdir()
    (folder / "data" / "words.txt").write_text("word")
    (folder / "data" / ".env").write_text("SECRET=s3cret")
    (folder / ".env").write_text("ENVIRONMENT_API_KEY=env_s3cret\n")
    lacks = image(folder)
    assert lacks.returncode == 1
    assert "No such file or directory: 'data/words.txt'" in lacks.stderr
    assert "--include PATH" in lacks.stderr
    assert image(folder, "--include", ".env").returncode == 2
    assert image(folder, "--port", "8001").returncode == 2

    done = image(folder, "--include", "data")
    assert done.returncode == 0, done.stderr
    built = Path(done.stdout.strip())
    assert (
        "no container engine answers here (docker, podman); on a machine with one: "
        f"docker build --tag task-app-one {built}" in (" ".join(done.stderr.split()))
    )
    copied = sorted(str(file.relative_to(built / "app")) for file in (built / "app").rglob("*") if file.is_file())
    assert copied == ["app.py", "data/words.txt", "rules.py"]
    asked = (built / "requirements.txt").read_text().splitlines()
    assert [line.partition("==")[0] for line in asked if not line.startswith("synthctl")] == ["pillow"]
    assert [file for file in built.rglob("*") if file.is_file() and "s3cret" in file.read_text(errors="replace")] == []

    lines = [line for line in (built / "Dockerfile").read_text().splitlines() if not line.startswith("#")]
    words = [line.partition(" ")[0] for line in lines]
    assert {"FROM", "ENV", "RUN", "WORKDIR", "COPY", "USER", "EXPOSE", "HEALTHCHECK", "CMD"} == {*words}
    assert words.index("USER") < words.index("CMD")
    for line in lines:
        if line.startswith("COPY"):
            assert (built / line.split()[1]).exists()
    # No engine is here: what the container would run is run in the folder that it would run in.
    command = json.loads(lines[words.index("CMD")].removeprefix("CMD "))
    health = json.loads(lines[words.index("HEALTHCHECK")].partition(" CMD ")[2])
    port = str(free_port())
    programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = CLEAN | {"PATH": programs, "HOST": "127.0.0.1", "PORT": port, "HOME": str(folder)}
    keyless = subprocess.run(command, cwd=built / "app", env=env, capture_output=True, text=True, check=False)
    assert (keyless.returncode, "set ENVIRONMENT_API_KEY" in keyless.stderr) == (2, True)
    env |= {"ENVIRONMENT_API_KEY": "k"}
    server = subprocess.Popen(command, cwd=built / "app", env=env, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        assert server.stdout.readline().strip() == f"http://127.0.0.1:{port}"
        assert subprocess.run(health, env=env, check=False).returncode == 0
        assert subprocess.run(health, env=env | {"ENVIRONMENT_API_KEY": "wrong"}, capture_output=True).returncode == 1
    finally:
        server.terminate()
        server.communicate(timeout=20)
    assert [*(built / "app").glob(".env")] == []


@pytest.mark.long
@pytest.mark.parametrize("code", [0, 7])
def test_an_engine_that_answers_is_told_to_build_the_folder(code: int, folder: Path):
    """The engine is a script that writes down what it is told: none is here."""
    programs = folder / "programs"
    programs.mkdir()
    script = f'#!/bin/sh\necho "$@" >> {folder}/told\ntest "$1" = info || exit {code}\n'
    (programs / "podman").write_text(script)
    (programs / "podman").chmod(0o755)
    done = image(folder, "--tag", "mine:1", "-o", "json", path=str(programs))
    built = folder / ".synth" / "deployments" / "one" / "image"
    assert (folder / "told").read_text().splitlines() == ["info", f"build --tag mine:1 {built}"]
    if code:
        assert (done.returncode, done.stdout) == (1, "")
        assert "the build failed (exit code 7)" in done.stderr
    else:
        assert json.loads(done.stdout) == {"id": "one", "folder": str(built), "tag": "mine:1", "built": True}
        assert "run it: podman run " in done.stderr
