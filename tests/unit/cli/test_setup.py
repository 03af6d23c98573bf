"""`synthctl setup`: what it writes, what it leaves alone, and what the backend is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from synth.runtime.environment.env_file import read_env_file
from tests.unit.cli.backend import Answer, Backend, Request, backend_that
from tests.unit.cli.test_command_line import synthctl

ACCOUNT = {"org": "org_1", "org_name": "default", "key_id": "key_1", "key_name": "first", "scopes": ["read"]}


def answer(request: Request) -> Answer:
    if request.headers.get("Authorization") != "Bearer sk_right":
        return Answer(401, {"error": {"message": "unknown key"}})
    return Answer(body=ACCOUNT if request.path == "/api/me" else {"id": "key_1"})


def sent(backend: Backend) -> list[str]:
    return [json.loads(r.body)["key"] for r in backend.requests if r.path == "/api/environment-keys"]


def test_it_makes_the_environment_key_and_gives_it_to_the_backend(tmp_path: Path):
    with backend_that(answer) as (backend, _):
        run = synthctl("setup", "--backend", backend.url, "--api-key", "sk_right", "-o", "json", cwd=tmp_path)
        assert run.returncode == 0, run.stderr
        written = read_env_file(tmp_path / ".env")
        assert (written["SYNTH_API_KEY"], written["BACKEND_BASE_URL"]) == ("sk_right", backend.url)
        assert sent(backend) == [written["ENVIRONMENT_API_KEY"]]
    assert json.loads(run.stdout)["backend"]["organisation"] == "org_1"
    assert written["ENVIRONMENT_API_KEY"] not in run.stdout + run.stderr


def test_what_the_file_says_is_left_and_a_flag_that_contradicts_it_is_refused(tmp_path: Path):
    env = tmp_path / ".env"
    env.write_text("# mine\nSYNTH_API_KEY=sk_old\nENVIRONMENT_API_KEY=env_own\nBACKEND_BASE_URL=http://127.0.0.1:9\n")
    before = env.read_text()
    run = synthctl("setup", "--api-key", "sk_new", cwd=tmp_path)
    assert run.returncode == 2
    assert ".env has another SYNTH_API_KEY" in run.stderr
    run = synthctl("setup", cwd=tmp_path)
    assert run.returncode == 0
    assert "cannot reach the backend" in run.stderr
    assert env.read_text() == before


def test_a_refused_key_is_exit_4_and_not_kept(tmp_path: Path):
    with backend_that(answer) as (backend, _):
        run = synthctl("setup", "--backend", backend.url, "--api-key", "sk_wrong", cwd=tmp_path)
    assert run.returncode == 4
    assert "unknown key" in run.stderr
    assert not (tmp_path / ".env").exists()


def test_the_address_is_kept_in_the_form_in_which_other_tools_use_it(tmp_path: Path):
    with backend_that(answer) as (backend, _):
        said = backend.url.removesuffix("/api")
        for _ in range(2):
            run = synthctl("setup", "--backend", said, "--api-key", "sk_right", cwd=tmp_path)
            assert run.returncode == 0, run.stderr
            assert read_env_file(tmp_path / ".env")["BACKEND_BASE_URL"] == backend.url


@pytest.mark.parametrize("files", [["new.env"], ["new.env", "more.env"]])
def test_what_is_made_goes_into_the_first_named_file(files: list[str], tmp_path: Path):
    (tmp_path / "more.env").write_text("SYNTH_API_KEY=sk_more\nBACKEND_BASE_URL=http://127.0.0.1:9\n")
    run = synthctl("setup", *(part for file in files for part in ("--env-file", file)), cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert set(read_env_file(tmp_path / "new.env")) == (
        {"ENVIRONMENT_API_KEY"} if len(files) == 2 else {"ENVIRONMENT_API_KEY", "BACKEND_BASE_URL"}
    )
    assert not (tmp_path / ".env").exists()
