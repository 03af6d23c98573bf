"""`synthctl deploy --to modal`, by Modal's own SDK, against a server of its protocol: not against Modal itself."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from modal_proto import api_pb2

from tests.forked_cli import forked_cli
from tests.unit.cli.test_command_line import CLEAN
from tests.unit.cli.test_serve import ONE
from tests.unit.local.deployments.modal_server import TOKEN, URL, ModalServer, modal_server

APP = "import rules\nfrom PIL import Image\n" + ONE.format(name="one")
#: What a container of Modal's does with a function: it imports the module, and calls what the function is named.
CONTAINER = """
import asyncio, importlib, sys
import httpx
module, name, key = sys.argv[1:]
app = getattr(importlib.import_module(module), name)()
async def ask():
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://app") as client:
        print(*[(await client.get("/health", headers={"X-API-Key": k})).status_code for k in (key, "wrong")])
asyncio.run(ask())
"""

WITHOUT_MODAL = """
import sys
class Hook:
    def find_spec(self, name, *_):
        if name == "modal":
            raise ModuleNotFoundError("No module named 'modal'", name=name)
sys.meta_path.insert(0, Hook())
"""


@pytest.fixture
def modal() -> Iterator[ModalServer]:
    with modal_server() as server:
        yield server


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "rules.py").write_text("")
    (tmp_path / "unused.py").write_text("")
    lines = (
        "ENVIRONMENT_API_KEY=env_s3cret",
        "WEATHER=weather_s3cret",
        "SYNTH_API_KEY=backend_s3cret",
        "MODAL_TOKEN_ID=ak-s3cret",
    )
    (tmp_path / ".env").write_text("\n".join(lines))
    return tmp_path


def environment(folder: Path, modal: ModalServer, **env: str) -> dict[str, str]:
    names = ("MODAL_SERVER_URL", "MODAL_TOKEN_ID", "MODAL_TOKEN_SECRET", "MODAL_CONFIG_PATH", "BACKEND_BASE_URL")
    values = (modal.url, *TOKEN, str(folder / "modal.toml"), "http://127.0.0.1:9")
    return CLEAN | dict(zip(names, values, strict=True)) | {"XDG_CONFIG_HOME": str(folder / "config")} | env


def run(folder: Path, modal: ModalServer, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    # Modal's SDK tries for a minute to reach a server.
    command = ["deploy", *arguments]
    return forked_cli().run(command, folder=folder, environment=environment(folder, modal, **env), timeout=120)


def deploy(folder: Path, modal: ModalServer, *flags: str, **env: str) -> subprocess.CompletedProcess[str]:
    return run(folder, modal, "one", "--to", "modal", *flags, **env)


def listed(folder: Path, modal: ModalServer) -> dict[str, Any]:
    [one] = json.loads(run(folder, modal, "ls", "-o", "json").stdout)
    return one


def refused(done: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    said = " ".join(done.stderr.split())
    assert (done.returncode, done.stdout, "Traceback" in said) == (code, "", False), said
    assert [word for word in words if word not in said] == [], said
    assert said.count("error:") == 1


def test_what_is_deployed_is_the_app_with_its_key_as_a_secret_and_it_serves(folder: Path, modal: ModalServer):
    done = deploy(folder, modal, "--start-timeout", "90.5", "--max-inputs", "7")
    assert (done.returncode, done.stdout) == (0, f"{URL}\n"), done.stderr
    assert "as a secret: ENVIRONMENT_API_KEY, WEATHER\n" in done.stderr
    [published] = modal.published
    assert (published.name, published.app_state) == ("task-app-one", api_pb2.APP_STATE_DEPLOYED)
    assert list(published.function_ids.values()) == list(modal.functions)

    [function] = modal.functions.values()
    assert function.webhook_config.type == api_pb2.WEBHOOK_TYPE_ASGI_APP
    assert function.definition_type == api_pb2.Function.DEFINITION_TYPE_FILE
    assert (function.startup_timeout_secs, function.max_concurrent_inputs, function.timeout_secs) == (91, 7, 86_400)
    [secret] = [modal.secrets[secret_id] for secret_id in function.secret_ids]
    assert secret == {"ENVIRONMENT_API_KEY": "env_s3cret", "WEATHER": "weather_s3cret"}

    lines = modal.commands(function.image_id)
    [python] = [line for line in lines if line.startswith("FROM") and "slim" in line]
    assert f":{sys.version_info.major}.{sys.version_info.minor}" in python
    asked = next(Path(folder).glob(".synth/deployments/one/modal/requirements.txt")).read_text().split()
    assert [one.partition("==")[0] for one in asked] == ["pillow"]
    text = "\n".join(lines)
    assert "RUN python -m pip install '/sdk[taskapp]'" in text
    assert "pip install -r /.requirements.txt" in text
    image = [modal.images[one] for one in modal.images if modal.images[one].context_files]
    assert [file.data.decode().split() for one in image for file in one.context_files] == [asked]
    assert {"/sdk/pyproject.toml", "/sdk/shared/synth/taskapp/sdk.py"} <= {*modal.copied(function.image_id)}

    files = {path: data for one in function.mount_ids for path, data in modal.files(one).items()}
    assert {path: data for path, data in files.items() if path.startswith("/app")} == {
        "/app/app.py": APP.encode(),
        "/app/rules.py": b"",
    }
    kept = [*folder.rglob(".synth/**/*")]
    assert [file for file in kept if file.is_file() and b"s3cret" in file.read_bytes()] == []
    assert [word for word in (*text.split(), *done.stderr.split()) if "s3cret" in word] == []
    assert [data for data in modal.blobs.values() if b"s3cret" in data] == []

    container = folder / "container"
    container.mkdir()
    for path, data in files.items():
        if path.startswith("/app/"):
            (container / path.removeprefix("/app/")).write_bytes(data)
    settings = [line.removeprefix("ENV ") for line in lines if line.startswith("ENV ")]
    env = CLEAN | secret | dict(word.split("=", 1) for line in settings for word in shlex.split(line))
    served = subprocess.run(
        [sys.executable, "-P", "-c", CONTAINER, function.module_name, function.function_name, "env_s3cret"],
        cwd=container,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert served.stdout == "200 400\n", served.stderr


@pytest.mark.long
def test_it_is_listed_deployed_again_under_its_name_and_stopped(folder: Path, modal: ModalServer):
    assert deploy(folder, modal, "--tag", "ours").returncode == 0
    first = listed(folder, modal)
    assert (first["modal"], first["health"], first["url"], first["log"]) == ("ours", "deployed", URL, None)
    refused(run(folder, modal, "logs", "one"), 2, "the log of one is at Modal", "modal app logs ours")
    refused(run(folder, modal, "one"), 1, "one is deployed to Modal", "synthctl deploy stop one")
    refused(deploy(folder, modal), 1, "one is deployed to Modal as 'ours'", "synthctl deploy stop one")
    assert deploy(folder, modal, "--tag", "ours", "--base", "python:3.13").returncode == 0
    again = modal.published[-1]
    assert (len(modal.apps), dict(again.function_ids)) == (1, dict(modal.published[0].function_ids))
    [function] = modal.functions.values()
    assert "FROM python:3.13" in modal.commands(function.image_id)

    # Whoever took the name since keeps it.
    ours, modal.names["ours"] = modal.names["ours"], "ap-of-somebody-else-000000"
    assert "one was not running" in run(folder, modal, "stop", "one").stderr
    assert "AppStop" not in modal.calls
    modal.names["ours"] = ours
    assert run(folder, modal, "stop", "one").stderr == "one is stopped\n"
    assert (modal.names, listed(folder, modal)["health"]) == ({}, "stopped")
    assert run(folder, modal, "ls").returncode == 0


@pytest.mark.long
def test_an_app_is_at_one_place_at_a_time(folder: Path, modal: ModalServer):
    assert deploy(folder, modal).returncode == 0
    assert run(folder, modal, "stop", "one").returncode == 0
    try:
        assert run(folder, modal, "one").returncode == 0
        assert (listed(folder, modal)["modal"], listed(folder, modal)["health"]) == (None, "healthy")
        refused(deploy(folder, modal), 1, "one is deployed as a process of this machine", "synthctl deploy stop one")
    finally:
        run(folder, modal, "stop", "one")
    assert deploy(folder, modal).returncode == 0
    assert listed(folder, modal)["health"] == "deployed"


def test_a_name_that_another_app_has_is_left_alone(folder: Path, modal: ModalServer):
    modal.names["task-app-one"] = "ap-of-somebody-else-000000"
    refused(deploy(folder, modal), 2, "Modal has an app 'task-app-one' already", "--tag")
    assert modal.published == []
    assert json.loads(run(folder, modal, "ls", "-o", "json").stdout) == []


@pytest.mark.parametrize(
    ("flags", "env", "code", "words"),
    [
        ((), {"MODAL_TOKEN_ID": "", "MODAL_TOKEN_SECRET": ""}, 4, ("Token missing", "modal token new")),
        ((), {"MODAL_TOKEN_SECRET": "another"}, 4, ("Token validation failed", "modal token new")),
        (("--tag", "not a name"), {}, 2, ("Invalid App name: 'not a name'",)),
        (("--tag", "a" * 65), {}, 2, ("Invalid App name", "shorter than 64")),
        (("--port", "8001"), {}, 2, ("--port has no meaning for --to modal",)),
        (("--include", "nothing"), {}, 2, ("there is no such file or folder",)),
        ((), {"MODAL_ENVIRONMENT": "nowhere"}, 1, ("Environment 'nowhere' not found",)),
    ],
)
def test_what_is_wrong_is_said_once(
    flags: tuple[str, ...], env: dict[str, str], code: int, words: tuple[str, ...], folder: Path, modal: ModalServer
):
    refused(deploy(folder, modal, *flags, **env), code, *words)
    assert modal.published == []


@pytest.mark.long
def test_an_image_that_cannot_be_built_leaves_what_was_deployed(folder: Path, modal: ModalServer):
    assert deploy(folder, modal).returncode == 0
    modal.builds = False
    (folder / "rules.py").write_text("ONE = 1\n")
    failed = deploy(folder, modal)
    refused(failed, 1, "Modal could not build the image", "pip: no such release", "modal image logs im-")
    assert (len(modal.published), listed(folder, modal)["health"]) == (1, "deployed")


def test_a_configuration_that_cannot_be_read_is_told(folder: Path, modal: ModalServer):
    (folder / "modal.toml").write_text("not toml")
    refused(deploy(folder, modal), 2, "modal.toml", "MODAL_CONFIG_PATH")


def test_without_the_sdk_it_says_how_to_install_it(folder: Path, modal: ModalServer):
    """A hook stands for an environment without the package: it cannot be taken out of this one."""
    (folder / "hook").mkdir()
    (folder / "hook" / "sitecustomize.py").write_text(WITHOUT_MODAL)
    hooked = f"{folder / 'hook'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    done = subprocess.run(
        [sys.executable, "-m", "synth.cli", "deploy", "one", "--to", "modal"],
        cwd=folder,
        env=environment(folder, modal, PYTHONPATH=hooked),
        capture_output=True,
        text=True,
        check=False,
    )
    refused(done, 2, "Modal's SDK is not installed here", "pip install modal")
    assert modal.calls == []


@pytest.mark.long
def test_a_server_that_is_not_there_is_told_when_the_sdk_has_given_up(folder: Path, modal: ModalServer):
    done = deploy(folder, modal, MODAL_SERVER_URL="http://127.0.0.1:9")
    refused(done, 7, "Modal does not answer", "http://127.0.0.1:9")
