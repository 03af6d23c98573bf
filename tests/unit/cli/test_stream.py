"""Following a job over connections that break."""

from __future__ import annotations

import json
import time
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest

from synth.api.schemas import JobWithConfig
from synth.cli.tui.follow import FollowOptions, follow_job, show_outcome
from synth.cli.tui.output import Format
from synth.console.errors import NotFound, TimedOut, Unreachable
from tests.unit.cli.backend import Answer, Request, backend_that, client_of, job_body

TYPES = ["job.created", "job.validated", "job.verified", "job.started", "train.step", "train.step", "job.succeeded"]
LOG = [
    {"seq": 10 * (i + 1), "type": t, "time": "2026-01-01T00:00:00Z", "job_id": "job_1", "data": {}}
    for i, t in enumerate(TYPES)
]
END = "event: end\ndata: {}\n\n"


def text_of(event: dict) -> str:
    return f"id: {event['seq']}\nevent: {event['type']}\ndata: {json.dumps(event)}\n\n"


def behind(request: Request) -> list[dict]:
    query = parse_qs(urlsplit(request.path).query)
    cursor = int(request.headers.get("Last-Event-ID") or query.get("after", ["0"])[0])
    return [e for e in LOG if e["seq"] > cursor]


@pytest.mark.parametrize("character", ["\u2028", "\u2029", "\u0085"])
def test_a_job_whose_name_holds_a_line_separator_is_followed_to_its_end(character: str):
    log = [LOG[0] | {"data": {"name": f"run{character}two"}}, LOG[-1]]
    chunks = [f"id: {e['seq']}\nevent: {e['type']}\ndata: {json.dumps(e, ensure_ascii=False)}\n\n" for e in log]
    with backend_that(lambda _: Answer(chunks=[*chunks, END])) as (backend, client):
        events = list(client.jobs.follow("job_1", timeout=60))
    assert events[0].data["name"] == f"run{character}two"
    assert len(backend.requests) == 1


def test_a_streamed_reply_holds_line_separators_as_text():
    pieces = [f"a{c}b" for c in ("\u2028", "\u2029", "\u0085")]
    chunks = [json.dumps({"choices": [{"delta": {"content": piece}}]}, ensure_ascii=False) for piece in pieces]
    with backend_that(lambda _: Answer(chunks=[f"data: {c}\n\n" for c in [*chunks, "[DONE]"]])) as (_, client):
        assert list(client.chat_stream("m", [], patience=60)) == pieces


def test_a_stream_that_breaks_after_every_event_gives_each_once_and_in_order():
    def answer(request: Request) -> Answer:
        rest = behind(request)
        # It breaks off within the second event: half an event is none.
        cut = "" if len(rest) < 2 else text_of(rest[1])[:25]
        return Answer(204) if not rest else Answer(chunks=[text_of(rest[0]), cut])

    with backend_that(answer) as (backend, client):
        seen = [e.seq for e in client.jobs.follow("job_1")]
    assert seen == [e["seq"] for e in LOG]
    assert len(backend.requests) == len(LOG) + 1


def test_events_that_come_twice_are_seen_once():
    chunks = [text_of(LOG[0]), text_of(LOG[0]), text_of(LOG[1]), text_of(LOG[0]), END]
    with backend_that(lambda _: Answer(chunks=chunks)) as (_, client):
        assert [e.seq for e in client.jobs.follow("job_1")] == [10, 20]


def test_a_watcher_begins_behind_the_sequence_it_is_given():
    with backend_that(lambda r: Answer(chunks=[*map(text_of, behind(r)), END])) as (_, client):
        assert [e.seq for e in client.jobs.follow("job_1", after=50)] == [60, 70]


@pytest.mark.parametrize("no_stream", [Answer(200, {"events": [], "last_seq": 0, "more": False}), Answer(chunks=[])])
def test_where_streams_do_not_come_through_pages_are_asked_for(no_stream: Answer):
    def answer(request: Request) -> Answer:
        if "event-stream" in request.headers.get("Accept", ""):
            return no_stream
        page = behind(request)[:2]
        return Answer(200, {"events": page, "last_seq": 70, "more": bool(behind(request)[2:])})

    with backend_that(answer) as (_, client):
        assert [e.seq for e in client.jobs.follow("job_1", interval=0.01)] == [e["seq"] for e in LOG]


def test_an_unknown_job_is_an_error_at_once():
    with backend_that(lambda _: Answer(404, {"error": {"message": "no job"}})) as (backend, client):
        with pytest.raises(NotFound, match="no job"):
            list(client.jobs.follow("job_1"))
        assert len(backend.requests) == 1


def test_a_backend_that_stays_away_ends_the_watch_when_patience_does():
    with backend_that(lambda _: Answer(503, {"error": {"message": "away"}})) as (_, client):
        began = time.monotonic()
        with pytest.raises(Exception, match="away"):
            list(client.jobs.follow("job_1", patience=1.0))
    assert time.monotonic() - began < 2


def test_a_backend_that_goes_away_for_good_is_unreachable():
    with backend_that(lambda r: Answer(chunks=[text_of(LOG[0])])) as (backend, client):
        events = client.jobs.follow("job_1", patience=0.5)
        assert next(events).seq == 10
        backend.server.socket.close()
        with pytest.raises(Unreachable):
            list(events)


def test_the_users_deadline_ends_a_watch_of_a_job_that_goes_on():
    def answer(request: Request) -> Answer:
        return Answer(chunks=[*map(text_of, behind(request)[:3]), ": ping\n\n"])

    with backend_that(answer) as (_, client), pytest.raises(TimedOut) as caught:
        list(client.jobs.follow("job_1", timeout=0.5))
    assert caught.value.code == 124


def test_an_outage_is_told_once_when_it_begins_and_once_when_it_is_over():
    told: list[str] = []
    answers = iter([Answer(chunks=[text_of(LOG[0])]), *[Answer(503, {"error": {"message": "draining"}})] * 3])

    def answer(request: Request) -> Answer:
        return next(answers, None) or Answer(chunks=[*map(text_of, behind(request)), END])

    with backend_that(answer) as (_, client):
        events = client.jobs.follow(
            "job_1",
            on_away=lambda reason: told.append(f"away: {reason}"),
            on_back=lambda seconds: told.append("back"),
        )
        assert [e.seq for e in events] == [e["seq"] for e in LOG]
    assert told == ["away: draining", "back"]


def test_a_backend_that_never_answered_is_not_waited_for():
    with backend_that(lambda _: Answer(503, {"error": {"message": "away"}})) as (backend, _):
        client = client_of(backend.url, retry_budget=0.3)
        with pytest.raises(Exception, match="away"):
            list(client.jobs.follow("job_1"))


def test_rollouts_that_fail_alike_are_one_line_and_a_count():
    problem = {"problem": {"what": "the app is down"}, "iteration": 1, "mode": "train", "tries": 4}
    types = [*LOG[:4], *[{"type": "rollout.failed", "data": problem | {"seed": n}} for n in range(64)]]
    types += [{"type": "rollout.batch", "data": {"iteration": 1, "sequences": 0}}, LOG[-1]]
    log = [LOG[0] | event | {"seq": n + 1} for n, event in enumerate(types)]
    lines: list[str] = []

    def answer(request: Request) -> Answer:
        if "/events" in request.path:
            return Answer(chunks=[*map(text_of, log), END])
        return Answer(body=job_body("succeeded"))

    with backend_that(answer) as (_, client):
        follow_job(client, "job_1", format=Format.TABLE, options=FollowOptions(timeout=60), emit=lines.append)
    down = [line for line in lines if "the app is down" in line]
    assert len(down) == 2, lines
    assert "… 63 more rollouts failed the same way: the app is down" in down[1]
    assert "batch 1" in lines[lines.index(down[1]) + 1]


@pytest.mark.parametrize(("step", "hinted"), [(3, True), (0, False)])
def test_a_failed_job_with_a_checkpoint_names_the_command_that_goes_on(capsys, step: int, hinted: bool):
    show_outcome(msgspec.convert(job_body("failed", step=step), JobWithConfig))
    assert ("synthctl jobs resume job_1" in capsys.readouterr().err) == hinted
