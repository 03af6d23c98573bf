"""No key reaches an origin that was not confirmed: a stub server and a stub proxy record what commands send."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from synth.cli.app import main
from synth.cli.doctor import CheckResult
from synth.client.connections import known_origins
from tests.unit.cli.backend import Answer, Request, backend_that
from tests.unit.cli.test_command_line import CLEAN

KEYS = {"SYNTH_API_KEY": "synth_live_key", "ENVIRONMENT_API_KEY": "env_key", "OPENAI_API_KEY": "sk_openai_key"}
Run = Callable[..., tuple[int, str]]


class Recorder:
    """A server that records each request, also one to a proxy, and answers 404."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        recorder = self

        class Handler(BaseHTTPRequestHandler):
            def _record(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                recorder.requests.append(f"{self.command} {self.path}\n{self.headers}{body.decode()}")
                self.send_response(404)
                self.send_header("Content-Length", "0")
                self.end_headers()

            do_GET = do_POST = do_DELETE = do_PUT = do_HEAD = do_CONNECT = _record

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("0.0.0.0", 0), Handler)
        self.port = self.server.server_address[1]

    @property
    def with_keys(self) -> list[str]:
        return [request for request in self.requests if any(key in request for key in KEYS.values())]


@pytest.fixture
def recorders() -> Iterator[tuple[Recorder, Recorder]]:
    """The server of somebody else, and a proxy."""
    both = Recorder(), Recorder()
    threads = [threading.Thread(target=r.server.serve_forever, kwargs={"poll_interval": 0.01}) for r in both]
    for thread in threads:
        thread.start()
    yield both
    for recorder, thread in zip(both, threads, strict=True):
        recorder.server.shutdown()
        thread.join()
        recorder.server.server_close()


@pytest.fixture
def evil(recorders: tuple[Recorder, Recorder]) -> str:
    """An address that is reached here, and is not loopback by its name."""
    return f"http://0.0.0.0:{recorders[0].port}"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command in this process, in a repository of somebody else's; returns its exit code and its messages."""
    (tmp_path / "clone" / ".git").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "clone")
    monkeypatch.setattr(known_origins, "_confirmed", set[tuple[str, str]]())
    # It replaces this process's own streams, which pytest reads.
    monkeypatch.setattr("synth.cli.app.end_quietly_without_reader", lambda: None)
    for name in {*os.environ} - {*CLEAN}:
        monkeypatch.delenv(name)
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)

    def run(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["synthctl", "--retry-for", "0", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), capsys.readouterr().err

    return run


JOB = '[eval]\nmodel = "m"\nseeds = "0-3"\ntask_app_url = "{evil}"\n'
BACKEND_COMMANDS = [
    ("jobs", "ls"),
    ("chat", "m", "--message", "hello"),
    ("files", "ls"),
    ("models", "ls"),
    ("keys", "ls"),
    ("orgs", "ls"),
    ("audit",),
    ("limits",),
    ("traces", "ls"),
    ("dead", "ls"),
    ("rollouts", "ls", "job_1"),
    ("jobs", "cancel", "job_1"),
    ("jobs", "metrics", "job_1"),
    ("setup",),
]
APP_COMMANDS = [
    ("submit", "job.toml", "--detach"),
    ("submit", "job.toml", "--no-preflight", "--detach"),
    ("eval", "job.toml", "--detach"),
    ("eval", "--model", "m", "--seeds", "0-3", "--task-url", "{evil}", "--detach"),
    ("play", "{evil}"),
    ("config", "check", "job.toml", "--task-url", "{evil}"),
]


@pytest.mark.parametrize("proxied", [False, True])
@pytest.mark.parametrize("command", BACKEND_COMMANDS, ids=" ".join)
def test_the_address_of_a_clones_env_file_gets_no_key(
    command: tuple[str, ...],
    proxied: bool,
    run: Run,
    evil: str,
    recorders: tuple[Recorder, Recorder],
    monkeypatch: pytest.MonkeyPatch,
):
    # A file that brings a key of its own confirms nothing, either: a user fills in what an example lacks.
    Path(".env").write_text(f"BACKEND_BASE_URL={evil}\n" + ("SYNTH_API_KEY=synth_live_key\n" if proxied else ""))
    if proxied:
        monkeypatch.delenv("SYNTH_API_KEY")
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{recorders[1].port}")
    code, told = run(*command)
    assert code == 2
    assert f"SYNTH_API_KEY ({'.env' if proxied else 'environment'}) is not sent to {evil}" in told
    assert "BACKEND_BASE_URL (.env)" in told
    assert "synthctl setup --backend" in told
    assert [r.requests for r in recorders] == [[], []]


@pytest.mark.parametrize("proxied", [False, True])
@pytest.mark.parametrize("command", APP_COMMANDS, ids=" ".join)
def test_the_task_app_of_a_clones_job_file_gets_no_key(
    command: tuple[str, ...],
    proxied: bool,
    run: Run,
    evil: str,
    recorders: tuple[Recorder, Recorder],
    monkeypatch: pytest.MonkeyPatch,
):
    Path("job.toml").write_text(JOB.format(evil=evil))
    if proxied:
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{recorders[1].port}")
    with backend_that(lambda _: Answer(404, {"error": {"message": "none"}})) as (backend, _):
        monkeypatch.setenv("BACKEND_BASE_URL", backend.url)
        code, told = run(*(part.format(evil=evil) for part in command))
        assert b"env_key" not in b"".join(request.body for request in backend.requests)
    assert code == 2
    assert f"ENVIRONMENT_API_KEY (environment) is not sent to {evil}" in told
    assert "--trust-app" in told
    assert [r.requests for r in recorders] == [[], []]


def test_doctor_looks_at_neither_and_names_both(
    run: Run, evil: str, recorders: tuple[Recorder, Recorder], monkeypatch: pytest.MonkeyPatch
):
    # Importing torch takes longer than all the rest.
    monkeypatch.setattr("synth.cli.doctor._torch", lambda: CheckResult(check="torch", result="ok", found=""))
    Path(".env").write_text(f"BACKEND_BASE_URL={evil}\nTASK_APP_URL={evil}\n")
    code, _ = run("doctor")
    assert code == 1
    assert recorders[0].requests == []


def test_the_key_of_another_endpoint_is_not_sent_to_an_address_of_the_command_line(
    run: Run, evil: str, recorders: tuple[Recorder, Recorder]
):
    Path("app.py").write_text("from synth.taskapp.sdk import TaskApp\napp = TaskApp('a')\n")
    code, told = run("play", "app.py", "--model", "m", "--model-url", evil)
    assert code == 2
    assert f"OPENAI_API_KEY (environment) is not sent to {evil}" in told
    assert "--trust-model-url" in told
    assert recorders[0].requests == []


def test_a_confirmation_is_asked_for_once_and_kept_for_its_key_alone(
    run: Run, evil: str, recorders: tuple[Recorder, Recorder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    kept = tmp_path / "config" / "synthctl" / "known_origins"
    Path(".env").write_text(f"BACKEND_BASE_URL={evil}\n")
    for flags in (("--trust-backend",), ()):
        run(*flags, "jobs", "ls")
        assert len(recorders[0].with_keys) == 1
        recorders[0].requests.clear()
        monkeypatch.setattr(known_origins, "_confirmed", set[tuple[str, str]]())
    assert kept.read_text() == f"SYNTH_API_KEY {evil}\n"
    assert kept.stat().st_mode & 0o777 == 0o600
    # The same origin has no confirmation for the other key.
    code, _ = run("config", "check", "job.toml", "--task-url", evil)
    assert code == 2
    assert recorders[0].with_keys == []
    run("config", "check", "job.toml", "--task-url", evil, "--trust-app")
    assert "env_key" in recorders[0].with_keys[0]
    assert kept.read_text() == f"SYNTH_API_KEY {evil}\nENVIRONMENT_API_KEY {evil}\n"
    # A file that others can write decides nothing.
    kept.chmod(0o666)
    code, told = run("jobs", "ls")
    assert (code, "other users can write this file" in told) == (2, True)


def test_setup_confirms_what_it_is_given_and_not_what_the_folder_brings(
    run: Run, evil: str, recorders: tuple[Recorder, Recorder], tmp_path: Path
):
    assert run("setup", "--backend", evil)[0] == 0
    assert "GET /api/me" in recorders[0].with_keys[0]
    assert f"SYNTH_API_KEY {evil}\n" == (tmp_path / "config" / "synthctl" / "known_origins").read_text()
    Path(".env").write_text(f"TASK_APP_URL={evil}\nBACKEND_BASE_URL={evil}\n")
    code, told = run("setup")
    assert code == 2
    assert f"ENVIRONMENT_API_KEY (environment) is not sent to {evil}" in told


def test_an_address_and_a_key_of_the_environment_are_a_pair(
    run: Run, evil: str, recorders: tuple[Recorder, Recorder], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("BACKEND_BASE_URL", evil)
    run("jobs", "ls")
    assert "synth_live_key" in recorders[0].with_keys[0]


def test_a_relative_config_folder_is_not_read(run: Run, evil: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("XDG_CONFIG_HOME", "config")
    monkeypatch.setenv("HOME", str(tmp_path))
    Path("config/synthctl").mkdir(parents=True)
    Path("config/synthctl/known_origins").write_text(f"SYNTH_API_KEY {evil}\n")
    Path(".env").write_text(f"BACKEND_BASE_URL={evil}\n")
    assert run("jobs", "ls")[0] == 2


def test_a_key_follows_no_redirect(run: Run, evil: str, recorders: tuple[Recorder, Recorder]):
    with backend_that(lambda _: Answer(307, {}, headers={"Location": f"{evil}/api/jobs"})) as (backend, _):
        code, told = run("--backend", backend.url, "jobs", "ls")
        assert len(backend.requests) == 1
    assert code == 7
    assert f"leads to '{evil}/api/jobs'" in told
    assert recorders[0].requests == []


def test_loopback_is_never_proxied_and_no_key_goes_to_a_proxy_in_clear_text(
    run: Run, evil: str, recorders: tuple[Recorder, Recorder], monkeypatch: pytest.MonkeyPatch
):
    proxy = f"http://127.0.0.1:{recorders[1].port}"
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, proxy)

    def answer(request: Request) -> Answer:
        return Answer(body={"data": [], "has_more": False})

    with backend_that(answer) as (backend, _):
        assert run("--backend", backend.url, "jobs", "ls")[0] == 0
    assert recorders[1].requests == []
    code, told = run("--trust-backend", "--backend", evil, "jobs", "ls")
    assert code == 2
    assert f"is not sent to {evil} through the proxy {proxy} (HTTP_PROXY), which would read it in clear text" in told
    assert [r.requests for r in recorders] == [[], []]
    # Over TLS the proxy sees the host's name alone.
    code, told = run("--trust-backend", "--backend", "https://cluster.example", "jobs", "ls")
    assert (code, f"through the proxy {proxy} (HTTPS_PROXY): 404" in told) == (7, True)
    assert recorders[1].requests[0].startswith("CONNECT cluster.example:443")
    assert recorders[1].with_keys == []


@pytest.mark.parametrize(("typed", "sent"), [(b"y\n", 1), (b"\n", 0)])
def test_a_terminal_is_asked(typed: bytes, sent: int, evil: str, recorders: tuple[Recorder, Recorder], tmp_path: Path):
    (tmp_path / ".env").write_text(f"BACKEND_BASE_URL={evil}\n")
    terminal, side = os.openpty()
    environment = CLEAN | KEYS | {"XDG_CONFIG_HOME": str(tmp_path / "config")}
    command = [sys.executable, "-m", "synth.cli", "jobs", "ls"]
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdin=side, stdout=subprocess.DEVNULL, stderr=side
    )
    os.close(side)
    shown = b""
    while b"[y/N]" not in shown:
        shown += os.read(terminal, 4096)
    os.write(terminal, typed)
    assert process.wait(60) == (7 if sent else 2)
    os.close(terminal)
    assert f"SYNTH_API_KEY (environment) was never sent to {evil}".encode() in b" ".join(shown.split())
    assert b"over http, where everybody" in b" ".join(shown.split())
    assert len(recorders[0].with_keys) == sent
