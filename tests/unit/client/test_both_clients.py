"""`Client` and `AsyncClient` against a server that misbehaves: errors, retries, resumption, files and pages."""

from __future__ import annotations

import hashlib
import itertools
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from synth.api.schemas import File
from synth.bus.server.embedded import free_port
from synth.client import (
    ClientError,
    FailedJob,
    NotAuthorised,
    NotFound,
    TimedOut,
    Unreachable,
    UsageProblem,
)
from tests.unit.cli.backend import Answer, Request, backend_that, job_body
from tests.unit.cli.test_stream import END, LOG, behind, text_of
from tests.unit.client.both import BOTH, KEY

pytestmark = pytest.mark.parametrize("of", BOTH)
Of = Any


def file_body(body: bytes, **changes: Any) -> dict[str, Any]:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    digest = hashlib.sha256(body).hexdigest()
    file = File(id="file_1", filename="a.jsonl", purpose="fine-tune", bytes=len(body), sha256=digest, created_at=now)
    return msgspec.to_builtins(file) | {"status": "ready"} | changes


@pytest.mark.parametrize(
    ("status", "kind"), [(401, NotAuthorised), (404, NotFound), (422, UsageProblem), (409, ClientError)]
)
def test_an_error_has_the_problem_the_status_and_the_request_id_and_no_key(
    of: Of, status: int, kind: type[ClientError]
):
    problem = {"what": "it is wrong", "expected": "another", "fix": "correct it", "where": "job.toml:3"}
    answer = Answer(status, {"error": {"problems": [problem]}})
    with backend_that(lambda _: answer) as (backend, _), pytest.raises(kind) as caught:
        of(backend.url, lambda c: c.jobs.get("job_1"))
    [problem] = caught.value.problems
    assert (problem.what, problem.expected, problem.fix) == ("it is wrong", "another", "correct it")
    assert problem.where.startswith("job.toml:3")
    sent = {name.lower(): value for name, value in backend.requests[0].headers.items()}
    assert (caught.value.status, caught.value.request_id) == (status, sent["traceparent"].split("-")[1])
    assert sent["authorization"] == f"Bearer {KEY}"
    assert KEY not in f"{caught.value!r} {caught.value} {caught.value.__dict__}"


def test_a_request_is_sent_again_while_the_backend_is_busy(of: Of):
    answers = iter([Answer(503, {}), Answer(429, {}, headers={"Retry-After": "0.1"}), Answer(200, job_body())])
    with backend_that(lambda _: next(answers)) as (backend, _):
        assert of(backend.url, lambda c: c.jobs.create({"config": ""}), retry_budget=30.0).id == "job_1"
    keys = {request.headers["Idempotency-Key"] for request in backend.requests}
    assert (len(backend.requests), len(keys)) == (3, 1)


def test_nobody_at_the_address_is_unreachable(of: Of):
    url = f"http://127.0.0.1:{free_port()}/api"
    with pytest.raises(Unreachable, match=url) as caught:
        of(url, lambda c: c.account(), retry_budget=0)
    assert caught.value.request_id is None


def test_a_broken_stream_is_resumed_without_gap_or_repeat(of: Of):
    def answer(request: Request) -> Answer:
        rest = behind(request)
        # It breaks off within the second event: half an event is none.
        cut = "" if len(rest) < 2 else text_of(rest[1])[:25]
        return Answer(204) if not rest else Answer(chunks=[text_of(rest[0]), cut])

    with backend_that(answer) as (backend, _):
        events = of(backend.url, lambda c: c.jobs.follow("job_1", timeout=60))
    assert [event.seq for event in events] == [event["seq"] for event in LOG]
    assert len(backend.requests) == len(LOG) + 1


@pytest.mark.parametrize("state", ["failed", "rejected", "cancelled"])
def test_waiting_for_a_job_that_fails_raises_with_the_job(of: Of, state: str):
    states = iter(["started", state])

    def answer(request: Request) -> Answer:
        if "/events" in request.path:
            return Answer(chunks=[*map(text_of, behind(request)), END])
        return Answer(body=job_body(next(states), problems=[{"what": "out of memory"}], code="oom"))

    with backend_that(answer) as (backend, _), pytest.raises(FailedJob, match="out of memory") as caught:
        of(backend.url, lambda c: c.jobs.wait("job_1", timeout=60))
    assert (caught.value.job.state, caught.value.job.code) == (state, "oom")


def test_a_wait_ends_at_its_deadline(of: Of):
    def answer(request: Request) -> Answer:
        if "/events" in request.path:
            return Answer(chunks=[*map(text_of, behind(request)[:2]), ": ping\n\n"])
        return Answer(body=job_body("started"))

    with backend_that(answer) as (backend, _), pytest.raises(TimedOut, match="job_1"):
        of(backend.url, lambda c: c.jobs.wait("job_1", timeout=0.3))


def test_a_list_reads_its_pages(of: Of):
    everything = [job_body(id=f"job_{n:03}") for n in range(450)]

    def answer(request: Request) -> Answer:
        after = request.path.partition("after=")[2].partition("&")[0]
        first = int(after.removeprefix("job_")) + 1 if after else 0
        return Answer(body={"data": everything[first : first + 200], "has_more": first + 200 < 450})

    with backend_that(answer) as (backend, _):
        jobs = of(backend.url, lambda c: c.jobs.list())
    assert [job.id for job in jobs] == [job["id"] for job in everything]
    assert len(backend.requests) == 3


def test_a_file_is_uploaded_in_pieces(of: Of, tmp_path: Path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"x" * (48 << 20))
    sent: list[int] = []
    # The server of the test reads the body whole; the client must not.
    with backend_that(lambda request: Answer(body=file_body(b"", bytes=len(request.body)))) as (backend, _):
        file = of(backend.url, lambda c: c.files.upload(path, sent=sent.append))
    assert file.bytes > 48 << 20
    pieces = [later - earlier for earlier, later in itertools.pairwise(sent) if later > earlier]
    assert max(pieces) <= 1 << 20


def test_a_file_that_is_not_there_is_named(of: Of, tmp_path: Path):
    def upload(client: Any) -> Any:
        return client.files.upload(tmp_path / "no.jsonl")

    with pytest.raises(UsageProblem, match=r"no\.jsonl.*no such file"):
        of(f"http://127.0.0.1:{free_port()}/api", upload)


def test_a_download_is_compared_with_its_digest(of: Of, tmp_path: Path):
    whole = b'{"messages": []}\n' * 1000
    bodies = iter([whole[:-5], b"", whole])

    def answer(request: Request) -> Answer:
        content = request.path.endswith("/content")
        return Answer(body=next(bodies)) if content else Answer(body=file_body(whole))

    path = tmp_path / "below" / "rows.jsonl"
    with backend_that(answer) as (backend, _):
        assert of(backend.url, lambda c: c.files.download("file_1", path)) == path
    assert path.read_bytes() == whole
    bodies = iter([whole[:-5]] * 4)
    with backend_that(answer) as (backend, _), pytest.raises(ClientError, match="other bytes"):
        of(backend.url, lambda c: c.files.download("file_1", tmp_path / "other"))
    assert [file.name for file in tmp_path.rglob("*") if file.is_file()] == ["rows.jsonl"]


def test_a_chat_takes_a_text_or_a_conversation(of: Of):
    body = {"choices": [{"message": {"role": "assistant", "content": "46"}}]}
    with backend_that(lambda _: Answer(body=body)) as (backend, _):
        assert of(backend.url, lambda c: c.chat("m", "What is 12 + 34?", max_tokens=8)).text == "46"
        of(backend.url, lambda c: c.chat("m", [{"role": "user", "content": "What is 12 + 34?"}], max_tokens=8))
    first, second = (msgspec.json.decode(request.body) for request in backend.requests)
    assert (
        first
        == second
        == {
            "model": "m",
            "messages": [{"role": "user", "content": "What is 12 + 34?"}],
            "max_tokens": 8,
        }
    )


SFT = """
[algorithm]
type = "offline"
method = "sft"
variety = "fft"
[job]
model = "tiny-qwen3"
data = "{data}"
[hyperparameters]
n_epochs = 1
"""


def test_a_submission_uploads_the_datasets_that_the_file_names(of: Of, tmp_path: Path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"messages": []}\n')
    (tmp_path / "sft.toml").write_text(SFT.format(data=rows))

    def answer(request: Request) -> Answer:
        return Answer(body=job_body() if request.path == "/api/jobs" else file_body(b""))

    for config in (tmp_path / "sft.toml", str(tmp_path / "sft.toml"), SFT.format(data=rows)):
        with backend_that(answer) as (backend, _):
            assert of(backend.url, lambda c, config=config: c.jobs.submit(config, seed=3)).id == "job_1"
        assert [r.path for r in backend.requests] == ["/api/files", "/api/files/file_1", "/api/jobs"]
        body = msgspec.json.decode(backend.requests[-1].body)
        assert (body["training_file"], body["seed"], "model" in body) == ("file_1", 3, False)


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ("missing.toml", r"missing\.toml: there is no such file"),
        (SFT.format(data="missing.jsonl"), r"missing\.jsonl': there is no such file"),
        (SFT.format(data="d.jsonl").replace("n_epochs", "n_epoch"), r"job\.toml:10.*n_epoch"),
        ({"algorithm": {"type": None}}, "this is no job"),
    ],
)
def test_a_wrong_job_is_refused_before_anything_is_sent(of: Of, config: Any, problem: str):
    with backend_that(lambda _: Answer(500, {})) as (backend, _), pytest.raises(UsageProblem, match=problem):
        of(backend.url, lambda c: c.jobs.submit(config))
    assert backend.requests == []
