"""The client's errors and retries, against a server that misbehaves."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from synth.api.schemas import File
from synth.bus.server.embedded import free_port
from synth.console.errors import CliError, NotAuthorised, NotFound, Unreachable, UsageProblem
from tests.unit.cli.backend import Answer, backend_that, client_of, job_body

FILE = msgspec.to_builtins(
    File(
        id="file_1", filename="a", purpose="fine-tune", bytes=1, sha256="0", created_at=datetime(2026, 1, 1, tzinfo=UTC)
    )
)


def test_a_submit_is_repeated_with_the_same_key_until_the_backend_is_back():
    answers = iter([Answer(503, {}), Answer(502, b"<html>"), Answer(201, job_body())])
    with backend_that(lambda _: next(answers)) as (backend, client):
        assert client.jobs.create({"config": ""}, idempotency_key="k1").id == "job_1"
    assert [r.headers["Idempotency-Key"] for r in backend.requests] == ["k1"] * 3


@pytest.mark.parametrize(
    ("status", "error", "code"),
    [(401, NotAuthorised, 4), (404, NotFound, 6), (422, UsageProblem, 2), (409, CliError, 1), (500, CliError, 1)],
)
def test_an_answer_that_will_not_change_is_an_error_of_its_kind_at_once(status: int, error: type[CliError], code: int):
    body = {"error": {"message": "because", "type": "x", "problems": []}, "detail": "because"}
    with backend_that(lambda _: Answer(status, body)) as (backend, client):
        with pytest.raises(error, match="because") as caught:
            client.jobs.get("job_1")
        assert caught.value.code == code
        assert len(backend.requests) == 1


def test_the_backends_problems_are_kept_in_their_parts():
    problem = {"what": "line 3 is wrong", "expected": "a table", "fix": "write one", "where": "a.toml:3"}
    answer = Answer(400, {"error": {"message": "m", "problems": [problem]}})
    with backend_that(lambda _: answer) as (_, client), pytest.raises(UsageProblem) as caught:
        client.jobs.get("job_1")
    assert caught.value.problems[0].where == "a.toml:3"
    assert caught.value.problems[0].fix == "write one"


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("error", [{}, {"message": "unknown key"}, {"problems": [{"what": "ended", "fix": "ask"}]}])
def test_a_refused_key_says_which_setting_to_check(error: dict[str, Any], status: int):
    source = r"SYNTH_API_KEY \(environment\)"
    with backend_that(lambda _: Answer(status, {"error": error})) as (_, client):
        with pytest.raises(NotAuthorised, match=source):
            list(client.jobs.list())
        with pytest.raises(NotAuthorised, match=source), client:
            next(client.chat_stream("m", "hello"))


@pytest.mark.parametrize("body", [b"<html>hello</html>", b"[1, 2]", b'{"data": [{"nothing": 1}]}', b"{}"])
def test_another_program_at_the_address_is_not_taken_for_a_backend(body: bytes):
    with backend_that(lambda _: Answer(200, body)) as (_, client), pytest.raises(Unreachable, match="not a Synth"):
        list(client.jobs.list())


@pytest.mark.parametrize("body", [b"Not Found", {"detail": "Not Found"}])
def test_another_programs_404_is_no_missing_job(body: object):
    with backend_that(lambda _: Answer(404, body)) as (_, client), pytest.raises(Unreachable, match="not a Synth"):
        client.jobs.get("job_1")


def test_nobody_at_the_address_is_said_with_the_address_and_what_to_do():
    url = f"http://127.0.0.1:{free_port()}/api"
    with client_of(url) as client, pytest.raises(Unreachable) as caught:
        client.jobs.get("job_1")
    assert url in str(caught.value)
    assert "synthctl up" in str(caught.value)
    assert caught.value.code == 7


def test_an_upload_sends_the_whole_file_again_when_it_is_repeated(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_bytes(b'{"messages": []}\n' * 1000)
    answers = iter([Answer(503, {}), Answer(200, FILE)])
    with backend_that(lambda _: next(answers)) as (backend, client):
        assert client.files.upload(path, purpose="fine-tune").id == "file_1"
    assert all(path.read_bytes() in r.body for r in backend.requests)
    assert len(backend.requests) == 2


@pytest.mark.parametrize(("field", "value"), [("state", "dreaming"), ("values", {"loss": None}), ("last_seq", "7")])
def test_a_job_of_another_shape_is_one_error_that_names_the_field(field: str, value: Any):
    with backend_that(lambda _: Answer(200, job_body(**{field: value}))) as (_, client):
        with pytest.raises(Unreachable, match=rf"{field}.*of one version") as caught:
            client.jobs.get("job_1")
        assert caught.value.code == 7
