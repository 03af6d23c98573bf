"""`-o json` is a contract of its own: what the API answers beside it is not printed."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from synth.access import Scope
from synth.api.schemas import Checkpoint, File, Key, MadeKey, MadeOrganisation, Model, Point
from synth.cli.tui import output
from synth.events import LineProblem
from synth.ids import OrgId
from synth.jobs.lifecycle import State
from tests.unit.cli.backend import Answer, backend_that, job_body

NOW = datetime(2026, 1, 1, tzinfo=UTC)
JOB = (
    "id state kind name label source_model stand_in model step provisional_step steps attempt created_at updated_at"
    " started_at ended_at code problems warnings warned waiting values rollouts judge eval tags config resolved origins"
    " last_seq reason verdict times linked_job_id"
)
FILE = (
    "id status filename purpose bytes sha256 rows messages characters tokens lengths images pairs prompts"
    " unanswered converted annotations bad_lines problems created_at"
)
KEY = "id name state scopes created_at created_by expires_at revoked_at"


def printed(data: object, capsys: pytest.CaptureFixture[str]):
    output.print_json(data)
    return json.loads(capsys.readouterr().out)


def test_a_job_is_printed_with_the_fields_that_programs_know(capsys: pytest.CaptureFixture[str]):
    body = job_body(State.STARTED, values={"loss": 0.5}, metadata={"a": "b"}, rollouts={"completed": 2, "failed": 0})
    with backend_that(lambda _: Answer(200, {"data": [body]})) as (_, client):
        [job] = printed([*client.jobs.list()], capsys)
    assert list(job) == JOB.split()
    assert (job["state"], job["values"], job["rollouts"]) == ("started", {"loss": 0.5}, {"completed": 2, "failed": 0})
    assert (job["created_at"], job["config"], job["waiting"]) == ("2026-01-01T00:00:00Z", None, None)


def test_other_answers_are_too_however_deep_they_lie(capsys: pytest.CaptureFixture[str]):
    problem = LineProblem(line=3, path="$", reason="bad")
    file = File(id="f", filename="a", purpose="p", bytes=1, sha256="0", problems=[problem], created_at=NOW)
    found = printed(file, capsys)
    assert list(found) == FILE.split()
    assert list(found["problems"][0]) == ["line", "reason", "path"]
    assert list(printed([Model(id="m", kind="base")], capsys)[0]) == [
        "id",
        "kind",
        "base",
        "stand_in",
        "job_id",
        "step",
        "created_at",
    ]
    checkpoint = Checkpoint(model="m", job_id="j", step=1, bytes=2, created_at=NOW)
    assert list(printed(checkpoint, capsys)) == ["model", "step", "bytes", "created_at", "values"]
    point = Point(name="loss", step=1, value=0.5, time=NOW)
    assert list(printed({"points": [point]}, capsys)["points"][0]) == ["name", "step", "value", "time"]


def test_a_key_is_printed_without_what_says_that_it_is_one(capsys: pytest.CaptureFixture[str]):
    key = {"id": "k", "name": "n", "state": "live", "scopes": (Scope.READ,), "created_at": NOW, "created_by": "k"}
    assert list(printed(Key(**key), capsys)) == KEY.split()
    made = MadeOrganisation(id=OrgId("o"), name="n", created_at=NOW, first_key=MadeKey(**key, key="secret"))
    found = printed(made, capsys)
    assert list(found) == ["id", "name", "created_at", "first_key"]
    assert list(found["first_key"]) == [*KEY.split(), "key"]
    assert found["first_key"]["scopes"] == ["read"]
