"""A job's files: wait until each is checked, and return the reference of its bytes, or the reason for its rejection."""

from __future__ import annotations

import asyncio
import difflib
import re
from contextlib import aclosing
from dataclasses import dataclass

from synth.bus.connection import Connection
from synth.bus.delivery import release_slot
from synth.bus.history.file_log import FileHistory, history_of, read_file
from synth.bus.replay import follow, replay
from synth.errors import Problem, Transient, UserError
from synth.events import BlobRef, FileDeleted, FileRejected, FileUploaded
from synth.events.catalogue import subject_of

_TOKEN = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True)
class ReadyFile:
    """A checked file. rows: the blob to train on. images: how many its rows show. pairs: whether they are pairs.

    count: how many rows. prompts: how many end with the user's message. unanswered: whether they are prompts alone.
    """

    name: str
    rows: BlobRef
    images: int
    pairs: bool
    count: int
    prompts: int
    unanswered: bool


async def wait_for_file(
    bus: Connection, org: str, file_id: str, *, role: str, timeout: float, stop: asyncio.Event
) -> ReadyFile:
    """Wait until the file is ready, and return it; the wait releases the handler's slot to other events.

    role: the file's use in the job, "training_file". Raises `UserError` if the file does not exist, was rejected or is
    not checked within `timeout` seconds, and `Transient` at `stop`.
    """
    known = await _read_known(bus, org, file_id, role)
    if known.verdict is None:
        release_slot()
        known = await _follow(bus, org, file_id, known, timeout=timeout, stop=stop)
    ready = _ready(known, file_id, role)
    if ready is None:
        name = known.upload.name if known.upload else file_id
        raise UserError(
            f"{name!r} has not been checked in time (SYNTH_FILE_WAIT_S)",
            expected="a file that is ready",
            fix="look whether the files service runs, and submit the job again when the file is ready",
            where=f"{role} = {file_id!r}",
        )
    return ready


async def look_at_file(bus: Connection, org: str, file_id: str, *, role: str) -> ReadyFile | None:
    """Return the file as it is now, None while it is being checked. Raises `UserError` as `wait_for_file`."""
    return _ready(await _read_known(bus, org, file_id, role), file_id, role)


async def _read_known(bus: Connection, org: str, file_id: str, role: str) -> FileHistory:
    known = await read_file(bus, org, file_id) if _TOKEN.fullmatch(file_id) else FileHistory()
    if known.upload is None:
        raise UserError(_deleted(file_id, role) if known.deleted else await _unknown(bus, org, file_id, role))
    return known


def _ready(known: FileHistory, file_id: str, role: str) -> ReadyFile | None:
    """Return the checked file; None without a verdict. Raises `UserError` when it was deleted or rejected."""
    if known.upload is None:
        raise UserError(_deleted(file_id, role))
    if known.verdict is None:
        return None
    if isinstance(known.verdict, FileRejected):
        raise UserError(rejected(known.verdict, known.upload.name, file_id, role))
    verdict = known.verdict
    return ReadyFile(
        known.upload.name,
        verdict.rewritten or known.upload.blob,
        verdict.images,
        bool(verdict.pairs),
        verdict.rows,
        verdict.prompts,
        verdict.unanswered > 0,
    )


def rejected(verdict: FileRejected, name: str, file_id: str, role: str) -> list[Problem]:
    """Return the problems that a user needs to repair the file: how many lines are bad, and the first of them."""
    if verdict.unchecked:
        return [Problem(what=f"{name!r} could not be checked: {p.reason}", where=name) for p in verdict.problems]
    summary = Problem(
        what=f"{name!r} has {verdict.bad_lines} bad line{'s' if verdict.bad_lines > 1 else ''}",
        expected="a conversation, a preference pair, or a prompt, on each line",
        fix="mend the file, upload it again, and submit the job with the new id",
        where=f"{role} = {file_id!r}",
    )
    return [summary, *(Problem(what=p.reason, where=f"{name}:{p.line} {p.path}") for p in verdict.problems)]


async def _follow(
    bus: Connection, org: str, file_id: str, known: FileHistory, *, timeout: float, stop: asyncio.Event
) -> FileHistory:
    """Return the file once it is checked or deleted; as it is when that takes longer than `timeout`."""
    decided = asyncio.create_task(_decided(bus, f"file.*.{org}.{file_id}", known))
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([decided, stopped], timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if decided.done():
            return decided.result()
        if stop.is_set():
            raise Transient("the service stops while a file is being checked", delay=0.5)
        return known
    finally:
        decided.cancel()
        stopped.cancel()


async def _decided(bus: Connection, events: str, known: FileHistory) -> FileHistory:
    async with aclosing(follow(bus, [events], after=known.last_seq)) as news:
        async for recorded in news:
            known = history_of([recorded], known)
            if known.upload is None or known.verdict is not None:
                return known
    raise Transient("a follow of the log ended by itself")


def _deleted(file_id: str, role: str) -> Problem:
    return Problem(
        what=f"the file {file_id!r} was deleted",
        expected="a file that is there when the job is verified",
        fix="upload it again (the same bytes get the same id), and submit the job again",
        where=role,
    )


async def _unknown(bus: Connection, org: str, file_id: str, role: str) -> Problem:
    subjects = [subject_of(kind, org, "*") for kind in (FileUploaded, FileDeleted)]
    last = {r.key: r for r in await replay(bus, subjects, last_per_subject=True)}
    uploads = [r for r in last.values() if isinstance(r.event, FileUploaded)]
    near = difflib.get_close_matches(file_id, [u.key for u in uploads], n=1)
    same_name = [u.key for u in uploads if isinstance(u.event, FileUploaded) and u.event.name == file_id]
    suggestion = next(iter([*same_name[-1:], *near]), None)
    return Problem(
        what=f"there is no file {file_id[:80]!r}",
        expected="the id of a file that your organisation has uploaded",
        fix=f"did you mean {suggestion!r}?" if suggestion else "upload it with `synthctl files upload`",
        where=role,
    )
