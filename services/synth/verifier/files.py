"""A job's files: wait until each is checked, and have its bytes' reference or what is wrong with it."""

from __future__ import annotations

import asyncio
import difflib
import re
from contextlib import aclosing

from synth.bus.connection import Connection
from synth.bus.recorded import Recorded
from synth.bus.replay import follow, replay
from synth.catalogue import subject_of
from synth.errors import Problem, Transient, UserError
from synth.events import BlobRef, FileReady, FileRejected, FileUploaded

_TOKEN = re.compile(r"[A-Za-z0-9_-]+")


async def wait_for_file(
    bus: Connection, org: str, file_id: str, *, role: str, timeout: float, stop: asyncio.Event
) -> BlobRef:
    """The file's blob, once it is ready.

    role: what the file is to the job, "training_file". Raises `UserError` when there is no such file, it was rejected
    or it is not checked within `timeout` seconds, and `Transient` at `stop`.
    """
    events = f"file.*.{org}.{file_id}"
    known = await replay(bus.nc, [events]) if _TOKEN.fullmatch(file_id) else []
    uploaded = next((r.event for r in known if isinstance(r.event, FileUploaded)), None)
    if uploaded is None:
        raise UserError(await _unknown(bus, org, file_id, role))
    verdict = verdict_of(known) or await _follow(bus, events, known[-1].seq, timeout=timeout, stop=stop)
    if verdict is None:
        raise UserError(
            Problem(
                what=f"{uploaded.name!r} has not been checked within {timeout:.0f} s of waiting",
                expected="a file that is ready",
                fix="look whether the files service runs, and submit the job again when the file is ready",
                where=f"{role} = {file_id!r}",
            )
        )
    if isinstance(verdict, FileRejected):
        raise UserError(rejected(verdict, uploaded.name, file_id, role))
    return uploaded.blob


def verdict_of(known: list[Recorded]) -> FileReady | FileRejected | None:
    """The last verdict among a file's events."""
    return next((r.event for r in reversed(known) if isinstance(r.event, FileReady | FileRejected)), None)


def rejected(verdict: FileRejected, name: str, file_id: str, role: str) -> list[Problem]:
    """What a user needs to mend the file: how many lines are bad, and the first of them."""
    summary = Problem(
        what=f"{name!r} has {verdict.bad_lines} bad line{'s' if verdict.bad_lines > 1 else ''}",
        expected="a conversation on each line",
        fix="mend the file, upload it again, and submit the job with the new id",
        where=f"{role} = {file_id!r}",
    )
    return [summary, *(Problem(what=p.reason, where=f"{name}:{p.line} {p.path}") for p in verdict.problems)]


async def _follow(
    bus: Connection, events: str, after: int, *, timeout: float, stop: asyncio.Event
) -> FileReady | FileRejected | None:
    found = asyncio.create_task(_next_verdict(bus, events, after))
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([found, stopped], timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if found.done():
            return found.result()
        if stop.is_set():
            raise Transient("the service stops while a file is being checked", delay=0.5)
        return None
    finally:
        found.cancel()
        stopped.cancel()


async def _next_verdict(bus: Connection, events: str, after: int) -> FileReady | FileRejected:
    async with aclosing(follow(bus.nc, [events], after=after)) as news:
        async for recorded in news:
            if (verdict := verdict_of([recorded])) is not None:
                return verdict
    raise Transient("a follow of the log ended by itself")


async def _unknown(bus: Connection, org: str, file_id: str, role: str) -> Problem:
    uploads = await replay(bus.nc, [subject_of(FileUploaded, org, "*")], last_per_subject=True)
    near = difflib.get_close_matches(file_id, [u.key for u in uploads], n=1)
    same_name = [u.key for u in uploads if isinstance(u.event, FileUploaded) and u.event.name == file_id]
    suggestion = next(iter([*same_name[-1:], *near]), None)
    return Problem(
        what=f"there is no file {file_id[:80]!r}",
        expected="the id of a file that your organisation has uploaded",
        fix=f"did you mean {suggestion!r}?" if suggestion else "upload it with `synthctl files upload`",
        where=role,
    )
