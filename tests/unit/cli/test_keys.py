"""Keys on the command line: asked for once, and shown once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from synth.console.errors import CliError
from tests.unit.cli.backend import Answer, backend_that
from tests.unit.cli.test_command_line import synthctl

MADE = {
    "id": "key_2",
    "name": "ci",
    "state": "live",
    "scopes": ["read"],
    "created_at": "2026-11-21T12:00:00Z",
    "created_by": "key_1",
    "key": "synth_live_new",
}


def test_a_key_is_asked_for_once_for_a_second_one_would_be_known_to_nobody():
    with backend_that(lambda _: Answer(503, {"error": {"message": "busy"}})) as (backend, client):
        with pytest.raises(CliError, match="busy"):
            client.keys.create(name="ci", scopes=["read"], expires_in_s=None)
        with pytest.raises(CliError, match="busy"):
            client.keys.rotate("key_1", grace_s=0)
        assert len(backend.requests) == 2


def test_a_url_key_is_printed_as_the_whole_url(tmp_path: Path):
    end = {"expires_at": "2099-11-21T12:00:00Z"}
    url_key = MADE | end | {"key": "synth_url_new", "path": "/keys/synth_url_new/v1", "url": True, "model": "tiny"}
    with backend_that(lambda _: Answer(201, url_key)) as (backend, client):
        surroundings = {"SYNTH_API_KEY": "k", "BACKEND_BASE_URL": client.root}
        flags = ("keys", "create", "--url", "--model", "tiny", "--expires-in", "6h", "--name", "ci")
        made = synthctl(*flags, cwd=tmp_path, **surroundings)
        wide = synthctl("keys", "create", "--url", "--scopes", "read", cwd=tmp_path, **surroundings)
        single = synthctl("keys", "create", "--model", "tiny", cwd=tmp_path, **surroundings)
    assert (made.returncode, made.stdout) == (0, f"{client.root.removesuffix('/api')}/keys/synth_url_new/v1\n")
    assert "key_2 (ci) opens chat with tiny, for anyone who has the URL" in made.stderr
    assert [json.loads(request.body) for request in backend.requests] == [
        {"name": "ci", "url": True, "expires_in_s": 21_600, "model": "tiny"}
    ]
    assert (wide.returncode, single.returncode) == (2, 2)
    assert "a URL cannot open 'read'" in wide.stderr
    assert "--model: a key is for every model" in single.stderr


def test_the_key_alone_is_data_and_the_rest_is_said_beside_it(tmp_path: Path):
    with backend_that(lambda _: Answer(201, MADE)) as (backend, client):
        surroundings = {"SYNTH_API_KEY": "k", "BACKEND_BASE_URL": client.root}
        flags = ("--name", "ci", "--scopes", "read, write", "--expires-in", "2d")
        made = synthctl("keys", "create", *flags, cwd=tmp_path, **surroundings)
        rotated = synthctl("keys", "rotate", "key_1", "--grace", "30m", cwd=tmp_path, **surroundings)
        wrong = synthctl("keys", "rotate", "key_1", "--grace", "soon", cwd=tmp_path, **surroundings)
    for run in (made, rotated):
        assert (run.returncode, run.stdout) == (0, "synth_live_new\n")
        assert "key_2 (ci) may read" in run.stderr
    assert wrong.returncode == 2
    assert "--grace: 'soon' is not a duration" in wrong.stderr
    bodies = [json.loads(request.body) for request in backend.requests]
    assert bodies == [{"name": "ci", "scopes": ["read", "write"], "expires_in_s": 172_800}, {"grace_s": 1800}]


def test_the_key_of_a_judge_is_read_from_standard_input_and_sent_once(tmp_path: Path):
    with backend_that(lambda _: Answer(201, {"name": "mine", "origin": "https://judge.example"})) as (backend, client):
        surroundings = {"SYNTH_API_KEY": "k", "BACKEND_BASE_URL": client.root}
        add = ("keys", "judge", "add", "mine", "--url", "https://judge.example/v1")
        stored = synthctl(*add, cwd=tmp_path, input="sk-1\n", **surroundings)
        empty = synthctl(*add, cwd=tmp_path, input="\n", **surroundings)
    assert (stored.returncode, "mine stored" in stored.stderr) == (0, True)
    assert [json.loads(request.body) for request in backend.requests] == [
        {"name": "mine", "key": "sk-1", "url": "https://judge.example/v1"}
    ]
    assert (empty.returncode, "the key is empty" in empty.stderr) == (2, True)


def test_a_bus_key_is_printed_alone_and_has_no_scopes_to_choose(tmp_path: Path):
    bus_key = MADE | {"key": "synth_bus_new", "bus": True, "scopes": ["read"]}
    with backend_that(lambda _: Answer(201, bus_key)) as (backend, client):
        surroundings = {"SYNTH_API_KEY": "k", "BACKEND_BASE_URL": client.root}
        made = synthctl("keys", "create", "--bus", "--name", "ci", cwd=tmp_path, **surroundings)
        wide = synthctl("keys", "create", "--bus", "--scopes", "write", cwd=tmp_path, **surroundings)
    assert (made.returncode, made.stdout) == (0, "synth_bus_new\n")
    assert "hears your organisation's events on the bus" in made.stderr
    assert [json.loads(request.body) for request in backend.requests] == [
        {"name": "ci", "bus": True, "expires_in_s": None}
    ]
    assert (wide.returncode, "--bus without --scopes" in wide.stderr) == (2, True)
