"""What a look at a task app says before a job is submitted: well, refused, or not seen from here."""

from __future__ import annotations

from typing import Any

import pytest

from synth.cli.task_apps.preflight import Seen, look_at, preflight
from synth.client.connections.config import Config, ConfigValue
from synth.console.errors import UsageProblem
from tests.unit.cli.backend import Answer, Request, backend_that

WELL = {"/health": Answer(body={"healthy": True}), "/task_info": Answer(body={"taskset": {}})}


def root_of(url: str) -> ConfigValue:
    return ConfigValue(url.removesuffix("/api"), "rl.toml")


@pytest.mark.parametrize(
    ("changed", "seen"),
    [
        ({}, Seen.WELL),
        ({"/health": Answer(401, {})}, Seen.REFUSED),
        ({"/task_info": Answer(404, {})}, Seen.REFUSED),
        ({"/health": Answer(body={"healthy": False})}, Seen.REFUSED),
        ({"/task_info": Answer(body={"hello": "world"})}, Seen.REFUSED),
        # A proxy on the way, or an app that is busy: no word on the app itself.
        ({"/health": Answer(407, {})}, Seen.UNKNOWN),
        ({"/health": Answer(429, {})}, Seen.UNKNOWN),
        ({"/health": Answer(502, {})}, Seen.UNKNOWN),
        ({"/task_info": Answer(body=b"<html>sign in</html>")}, Seen.UNKNOWN),
    ],
)
def test_each_answer_is_a_word_on_the_app_or_none(changed: dict[str, Answer], seen: Seen):
    with backend_that(lambda request: (WELL | changed)[request.path]) as (app, _):
        assert look_at(root_of(app.url), ConfigValue("k", "environment", "ENVIRONMENT_API_KEY")).seen is seen


@pytest.mark.parametrize("any_ok", [True, False])
def test_what_is_refused_here_is_asked_of_the_cluster_which_has_the_last_word(
    any_ok: bool, capsys: pytest.CaptureFixture[str]
):
    def answer(request: Request) -> Answer:
        if request.path == "/api/rl/verify_task_app":
            return Answer(body={"any_ok": any_ok, "detail": "the cluster looked"})
        return Answer(404, {}) if request.path == "/health" else Answer(201, {"id": "key_1"})

    with backend_that(answer) as (backend, client):
        url, config = root_of(backend.url), _config(backend.url, key="env_1")
        if any_ok:
            preflight(url, config, client)
        else:
            with pytest.raises(UsageProblem, match=r"/health answers HTTP 404.*the cluster looked.*--no-preflight"):
                preflight(url, config, client)
        asked = [request.path for request in backend.requests]
    assert asked == ["/health", "/api/environment-keys", "/api/rl/verify_task_app"]
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("any_ok", [True, False])
def test_of_the_loopback_of_a_cluster_elsewhere_the_cluster_alone_is_asked(
    any_ok: bool, capsys: pytest.CaptureFixture[str]
):
    with backend_that(lambda _: Answer(body={"any_ok": any_ok, "detail": "the cluster looked"})) as (backend, client):
        url, config = root_of(backend.url), _config("http://synth.example/api")
        if any_ok:
            preflight(url, config, client)
            assert "is at the cluster's own loopback; the cluster looked" in capsys.readouterr().err
        else:
            with pytest.raises(UsageProblem, match=r"at the cluster's own loopback.*reports: the cluster looked"):
                preflight(url, config, client)
        assert [request.path for request in backend.requests] == ["/api/rl/verify_task_app"]


def test_an_app_that_is_seen_from_nowhere_stops_nothing_while_the_cluster_cannot_be_asked(
    capsys: pytest.CaptureFixture[str],
):
    away = Answer(503, {"error": {"message": "the verifier is away"}})
    with backend_that(lambda _: away) as (backend, client):
        preflight(root_of("http://127.0.0.1:9"), _config(backend.url), client)
    told = " ".join(capsys.readouterr().err.split())
    assert told.startswith("warning: task app: http://127.0.0.1:9/health cannot be reached (")
    assert told.endswith("the cluster looks at it later (the verifier is away)")


def _config(backend: str, *, key: str | None = None) -> Config:
    values: dict[str, Any] = {"api_key": ConfigValue("k", "environment"), "task_url": None}
    return Config(ConfigValue(backend, "flag"), environment_key=ConfigValue(key, ".env") if key else None, **values)
