"""The log lines of a service about a task that it owns, stored as a bounded blob of the task's job.

The blob is written again at intervals, so that `synthctl logs JOB` shows a job that runs, and when an attempt ends.
When the task is done, an event names the blob and the bytes of all logs of the job, which count in the organisation's
bytes. Until then no event has its digest, so the first line of a log has the digest of the others. A process that dies
leaves its last write. A log that cannot be stored costs a warning, never the attempt.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import secrets
import time
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from threading import Lock

import msgspec
from nats.errors import Error as NatsError
from obstore.exceptions import BaseError

from synth.blobs import BlobStore
from synth.bus.connection import Connection
from synth.bus.publish import Publisher
from synth.errors import SynthError
from synth.events import BlobRef, CollectionLogged, PolicyLogged, TrainLogged
from synth.keys import masked
from synth.runtime import logs
from synth.work import Task

log = logs.get("attempt logs")

#: The folder of a job's logs, below the job's own.
LOG_FOLDER = "logs"
_DIGEST = "sha256"
_EVENTS = {"train": TrainLogged, "collect": CollectionLogged, "serve": PolicyLogged}
#: Logs of tasks that were handed back, which may come again.
_MOST_OPEN = 64
#: Seconds in which a write must succeed: the process may be ending.
_WRITE_S = 5.0
#: Secrets of others that an address, a header or an error may carry.
_SECRETS = re.compile(r"(?<=://)[^/@\s\"]+(?=@)|(?<=[Bb]earer )[^\s\"\\]+|\b(?:sk-|hf_|xox[a-z]-|gh[ps]_)[\w-]{8,}")


def with_digest(text: bytes) -> bytes:
    """Return a log's text behind a line with its digest."""
    return msgspec.json.encode({_DIGEST: hashlib.sha256(text).hexdigest()}) + b"\n" + text


def without_digest(body: bytes) -> tuple[bytes, bool]:
    """Return the text of a stored log, and whether it is as it was written. An earlier version's has no digest."""
    first, _, text = body.partition(b"\n")
    if not first.startswith(b'{"%s":' % _DIGEST.encode()):
        return body, True
    return text, with_digest(text) == body


class LastLines:
    """The last lines of a log, within a number of bytes. Threads may add to it."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lines: deque[bytes] = deque()
        self._lock = Lock()
        self._size = 0
        self.total = 0

    def add(self, line: str) -> None:
        """Add a line without the secrets in it; the oldest lines go if there is no room."""
        text = _SECRETS.sub("[secret]", masked(line)).encode()[: max(0, self._max_bytes - 1)] + b"\n"
        with self._lock:
            self._lines.append(text)
            self._size += len(text)
            self.total += 1
            while self._size > self._max_bytes:
                self._size -= len(self._lines.popleft())

    def text(self) -> bytes:
        """Return the lines that are kept."""
        with self._lock:
            return b"".join(self._lines)


@dataclass(frozen=True)
class AttemptLogs:
    """Stores the logs of the tasks of one process. max_bytes: of a log; 0 stores none. every_s: between two writes."""

    bus: Connection
    blobs: BlobStore
    max_bytes: int
    every_s: float
    _open: dict[str, AttemptLog] = field(default_factory=dict[str, "AttemptLog"])

    @asynccontextmanager
    async def record(self, task: Task) -> AsyncGenerator[AttemptLog]:
        """Store the log lines of this process about the task's job, until the attempt ends.

        A task that is not finished is tried again. If that is in this process, the same log goes on.
        """
        attempt = self._open.pop(task.subject, None) or AttemptLog(self, task, LastLines(self.max_bytes))
        with logs.copy_lines(task.job_id, attempt.lines.add):
            ended = asyncio.Event()
            writing = asyncio.create_task(attempt.write_at_intervals(ended))
            try:
                yield attempt
            finally:
                # Not cancelled: the thread of a cancelled write could still put the older lines over the last ones.
                ended.set()
                await writing
        if attempt.finished:
            await attempt.announce()
            return
        self._open[task.subject] = attempt
        if len(self._open) > _MOST_OPEN:
            del self._open[next(iter(self._open))]


@dataclass
class AttemptLog:
    """The log of a task. finished: whether no attempt follows."""

    logs: AttemptLogs
    task: Task
    lines: LastLines
    name: str = field(default_factory=lambda: f"{time.time_ns() // 1_000_000}-{secrets.token_hex(3)}")
    finished: bool = False
    _written: int = 0
    _blob: BlobRef | None = None

    @property
    def _folder(self) -> str:
        return f"jobs/{self.task.job_id}/{LOG_FOLDER}"

    async def write_at_intervals(self, ended: asyncio.Event) -> None:
        """Write new lines at intervals, and once more after the end."""
        while not ended.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(self.logs.every_s):
                    await ended.wait()
            await self.write()

    async def write(self) -> None:
        """Write the lines if there are new ones."""
        written = self.lines.total
        if written == self._written or not self.logs.max_bytes:
            return
        try:
            async with asyncio.timeout(_WRITE_S):
                key = f"{self._folder}/{self.name}-{self.task.kind}.jsonl"
                self._blob = await self.logs.blobs.put_bytes(key, with_digest(self.lines.text()))
            self._written = written
        except (SynthError, OSError, BaseError, TimeoutError) as error:
            log.warning("a log is not stored", job=self.task.job_id, error=repr(error))

    async def announce(self) -> None:
        """Publish the address of the log, and the size of the job's logs in bytes."""
        if self._blob is None:
            return
        try:
            async with asyncio.timeout(_WRITE_S):
                size = sum([size async for _, size, _ in self.logs.blobs.below(self._folder)])
                event = _EVENTS[self.task.kind](blob=self._blob, bytes=size)
                publisher = Publisher(self.logs.bus)
                await publisher.once(event, org=self.task.org, key=self.task.job_id, id=self.name)
        except (SynthError, NatsError, OSError, BaseError, TimeoutError) as error:
            log.warning("a log is not announced", job=self.task.job_id, error=repr(error))
