"""Where a client finds its settings, which key goes where, and what a plain import costs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from synth.client import AsyncClient, Client, NotAuthorised, UnconfirmedOrigin
from tests.unit.cli.backend import SETTINGS, Answer, backend_that
from tests.unit.client.both import KEY

KINDS = [Client, AsyncClient]
ACCOUNT = {"org": "o", "org_name": "O", "key_id": "key_1", "key_name": "first", "scopes": ["read"]}


@pytest.fixture(autouse=True)
def _clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in SETTINGS:
        monkeypatch.delenv(name, raising=False)


def test_a_client_reads_the_settings_of_synthctl(tmp_path: Path):
    with backend_that(lambda _: Answer(body=ACCOUNT)) as (backend, _):
        (tmp_path / ".env").write_text(f"SYNTH_API_KEY={KEY}\nBACKEND_BASE_URL={backend.url}\n")
        with Client() as client:
            assert client.account().org == "o"
            assert repr(client) == f"<Client of {backend.url}>"
            assert KEY not in f"{client._api.config}"
    assert backend.requests[0].headers["Authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_key_there_is_no_client(kind: type[Client] | type[AsyncClient]):
    with pytest.raises(NotAuthorised, match="SYNTH_API_KEY"):
        kind()


@pytest.mark.parametrize("kind", KINDS)
def test_no_key_is_sent_to_an_address_of_a_folder(
    kind: type[Client] | type[AsyncClient], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / ".env").write_text("BACKEND_BASE_URL=https://other.example\n")
    monkeypatch.setenv("SYNTH_API_KEY", KEY)
    choices: list[Any] = [{}, {"api_key": KEY}, {"base_url": "https://another.example"}]
    for options in choices:
        with pytest.raises(UnconfirmedOrigin) as caught:
            kind(**options)
        assert KEY not in str(caught.value)
    # Both from the program: a pair that the user has set.
    kind(api_key=KEY, base_url="https://other.example")


def test_the_import_is_light(tmp_path: Path):
    code = """
import sys
from synth.client import AsyncClient, Client, ClientError
heavy = {"nats", "faststream", "torch", "transformers", "numpy", "typer", "aiohttp", "starlette"}
services = ("gateway", "trainer", "inference", "files", "judge", "rollouts", "validator", "verifier", "cli", "local")
heavy |= {f"synth.{name}" for name in services}
sys.stdout.write(",".join(sorted(heavy & set(sys.modules))))
"""
    environment = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path, env=environment
    )
    assert run.stdout == ""
