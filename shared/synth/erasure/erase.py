"""Erases deleted data from the log itself: an ended job, or an organisation whose keys are revoked.

Invariants. What a user deletes is gone from every answer at once, and from the blobs when nothing needs it; the log
holds its events all the same. Here the server overwrites each of them in its store, except the `deleted`
facts: they show that the job or file existed, to a read model that is built again and to a backup. Sequences stay
unchanged, with gaps, as after events that expire. No event is erased while a blob of its job or file exists, so an
erasure is always complete. An erasure that was killed can be run again: it continues with the remaining events.

Only the user `bus` may erase, so that a thief with a service's credential cannot destroy the log.
"""

# nats-py annotates parts of itself not at all.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass

from nats.errors import Error as NatsError
from nats.js.errors import APIError

from synth.blobs import BlobStore
from synth.bus.connection import Connection
from synth.bus.kv.secrets import SecretStore
from synth.bus.recorded import delivery_numbers
from synth.bus.replay import read_stream
from synth.bus.server.topology import AUDIT, DEAD, EVENTS, SECRET_BUCKETS, audit_subject
from synth.erasure.records import record_erasure
from synth.errors import Transient, UserError
from synth.ids import OrgId

Report = Callable[[str], None]

#: Facts that stay: they show that a job or a file existed, and hold none of its data.
TOMBSTONES = frozenset({"job.deleted", "file.deleted"})
_BEGINNINGS = frozenset({"job.created", "file.uploaded"})
_AT_ONCE = 32
_READ_S = 600.0
_NO_SUCH_SEQUENCE = 10043
#: A store's description of the error for a message that is already erased; its code means only: not deleted.
_NO_MESSAGE_FOUND = "no message found"


@dataclass(frozen=True)
class Erased:
    """Counts of erased data. events: of the log. letters: dead letters. keys: entries of the secrets. records: of the
    audit stream. blobs: of the store."""

    events: int
    letters: int
    keys: int = 0
    records: int = 0
    blobs: int = 0


async def erase_job(bus: Connection, blobs: BlobStore, org: str, job: str, *, report: Report) -> Erased:
    """Erase a deleted job. Raises `UserError` if it is not deleted, and while blobs of it exist."""
    await _require_erasable(bus)
    subjects = await read_subjects(bus, EVENTS, [f"*.*.{org}.{job}"])
    if not subjects:
        raise _refused(f"the log has no job {job} of {org}", expected="ids as `synthctl jobs ls` has them", where=job)
    _require_deleted(subjects, where=job)
    await _require_no_blobs(blobs, [f"jobs/{job}"], where=job)
    letters = await read_subjects(bus, DEAD, ["dead.>"])
    return Erased(
        events=await erase_messages(bus, EVENTS, _without_tombstones(subjects), report),
        letters=await erase_messages(bus, DEAD, _naming(letters, {org, job}), report),
    )


async def erase_organisation(
    bus: Connection, blobs: BlobStore, secrets: SecretStore, org: OrgId, *, report: Report
) -> Erased:
    """Erase an organisation: its events, dead letters, keys, audit records and its name.

    Raises `UserError` while one of its API keys is active, a job or a file of it is not deleted, or its blobs exist.
    """
    await _require_erasable(bus)
    if active := [key.key_id for key in await secrets.api_keys(org) if key.active]:
        raise _refused(
            f"{len(active)} API keys of {org} open yet: {_some(active)}",
            expected="an organisation whose keys are revoked",
            fix="revoke them: synthctl keys revoke ID",
            where=org,
        )
    subjects = await read_subjects(bus, EVENTS, [f"*.*.{org}.*"])
    _require_deleted(subjects, where=org)
    jobs = {subject.split(".")[3] for subject in subjects.values() if subject.startswith("job.")}
    await _require_no_blobs(blobs, [f"orgs/{org}/files", *(f"jobs/{job}" for job in sorted(jobs))], where=org)
    letters = await read_subjects(bus, DEAD, ["dead.>"])
    records = await read_subjects(bus, AUDIT, [audit_subject(org, "*")])
    # Pictures of files that are gone, and requests to its judges: no event names them.
    unnamed = [uri for folder in (f"orgs/{org}", f"judging/{org}") for uri in await blobs.uris_below(folder)]
    await blobs.delete(unnamed)
    return Erased(
        events=await erase_messages(bus, EVENTS, _without_tombstones(subjects), report),
        letters=await erase_messages(bus, DEAD, _naming(letters, {org}), report),
        keys=sum([await _erase_keys(bus, bucket, org, report) for bucket in SECRET_BUCKETS]),
        records=await erase_messages(bus, AUDIT, sorted(records), report),
        blobs=len(unnamed),
    )


async def _erase_keys(bus: Connection, bucket: str, org: OrgId, report: Report) -> int:
    stream = f"KV_{bucket}"
    return await erase_messages(bus, stream, _naming(await read_subjects(bus, stream, [">"]), {org}), report)


async def _require_erasable(bus: Connection) -> None:
    buckets = [f"KV_{bucket}" for bucket in SECRET_BUCKETS]
    infos = [await bus.js.stream_info(name) for name in (EVENTS, *buckets)]
    if any(info.config.deny_delete for info in infos):
        raise _refused(
            "the log of this cluster was made by a version that could not erase, and the server lets nobody change it",
            expected="a log from which the user `bus` may delete",
            fix="make it anew: `synthd bus backup DIR`, then `synthd bus restore DIR` into an empty bus",
            where=EVENTS,
        )


def _require_deleted(subjects: dict[int, str], *, where: str) -> None:
    """Raise `UserError` if a job or a file in the log is not deleted, or was made again since."""
    begun: dict[str, int] = {}
    deleted: dict[str, int] = {}
    for seq, subject in subjects.items():
        type_, key = type_of(subject), subject.split(".")[3]
        if key.startswith(("job_", "file_")):
            begun.setdefault(key, 0)
        if type_ in _BEGINNINGS:
            begun[key] = max(begun[key], seq)
        elif type_ in TOMBSTONES:
            deleted[key] = max(deleted.get(key, 0), seq)
    there = [key for key, seq in begun.items() if deleted.get(key, -1) < seq]
    if there:
        raise _refused(
            f"{len(there)} jobs or files are not deleted: {_some(there)}",
            expected="jobs that have ended and were deleted, and deleted files",
            fix="delete them first: synthctl jobs rm JOB, synthctl files rm FILE",
            where=where,
        )


async def _require_no_blobs(blobs: BlobStore, folders: Collection[str], *, where: str) -> None:
    there = [uri for folder in folders for uri in await blobs.uris_below(folder)]
    if there:
        raise _refused(
            f"{len(there)} blobs are there yet: {_some(there)}",
            expected="what a gateway removes once no live job was started from it and no model lies over it",
            fix="wait for those jobs, delete those models, then erase again",
            where=where,
        )


async def read_subjects(bus: Connection, stream: str, filters: list[str]) -> dict[int, str]:
    """Return the subject of each message, by its sequence. Raises `Transient` when the bus does not answer."""
    result: dict[int, str] = {}
    try:
        async with asyncio.timeout(_READ_S):
            async for message in read_stream(bus.nc, filters, stream=stream, headers_only=True):
                result[delivery_numbers(message.reply)[0]] = message.subject
    except TimeoutError as error:
        raise Transient(f"the bus did not answer a read of {stream}: {error!r}") from error
    return result


async def erase_message(bus: Connection, stream: str, seq: int) -> bool:
    """Make the server overwrite one message; returns whether it existed. Raises `Transient` if the bus fails."""
    try:
        # It overwrites the bytes before it answers; a purge would only forget where they are.
        await bus.js.delete_msg(stream, seq)
    except APIError as error:
        if error.err_code == _NO_SUCH_SEQUENCE or error.description == _NO_MESSAGE_FOUND:
            return False
        raise Transient(f"the bus cannot erase message {seq} of {stream}: {error.description}") from error
    except (NatsError, TimeoutError) as error:
        raise Transient(f"the bus did not answer the erasure of message {seq} of {stream}: {error!r}") from error
    return True


async def erase_messages(bus: Connection, stream: str, sequences: list[int], report: Report) -> int:
    """Make the server overwrite these messages, the newest last: while it exists, the erasure is visibly unfinished."""
    await record_erasure(bus, stream, sequences)
    for first in range(0, len(sequences), _AT_ONCE):
        await asyncio.gather(*(erase_message(bus, stream, seq) for seq in sequences[first : first + _AT_ONCE]))
        if first and first % (_AT_ONCE * 64) == 0:
            report(f"{first} of {len(sequences)} messages of {stream} are erased")
    return len(sequences)


def _without_tombstones(subjects: dict[int, str]) -> list[int]:
    return sorted(seq for seq, subject in subjects.items() if type_of(subject) not in TOMBSTONES)


def _naming(subjects: dict[int, str], tokens: set[str]) -> list[int]:
    """Return the messages whose subjects have all of these tokens."""
    return sorted(seq for seq, subject in subjects.items() if tokens <= set(subject.split(".")))


def type_of(subject: str) -> str:
    return ".".join(subject.split(".", 2)[:2])


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (" …" if len(names) > 3 else "")


def _refused(what: str, *, expected: str, where: str, fix: str = "") -> UserError:
    return UserError(what, expected=expected, fix=fix, where=where)
