"""Keys on the command line: asked for once, and shown once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from synth.cli.errors import CliError
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
            client.add_key(name="ci", scopes=["read"], expires_in_s=None)
        with pytest.raises(CliError, match="busy"):
            client.rotate_key("key_1", grace_s=0)
        assert len(backend.requests) == 2


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
