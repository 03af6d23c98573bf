"""Tokenises a file of any size in chunks, several at a time, each in a process of its own.

The processes are forked: they share the tokenizer and the model's classes with this one, at no memory of their own, and
the memory that tokenising takes is freed when they end. Invariants: a whole chunk is never made again; a file that
cannot be trained on fails with its first problem, independent of the process that reaches one first; a process whose
parent has ended stops within a row.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing import connection
from pathlib import Path
from typing import Any, NoReturn

import torch

from synth.trainer.errors import TrainingFailed
from synth.trainer.learner.data.token_chunk import ChunkInfo, check_chunk
from synth.trainer.learner.data.token_store import chunk_path

#: Called with the bytes of the source that are tokenised, and all of them.
BytesProgress = Callable[[int, int], None]
#: Tokenises the bytes of a source from the first up to the second into a file, and reports its progress.
MakeChunk = Callable[[int, int, Path, Callable[[int], None]], ChunkInfo]

#: How often one chunk may end its process before the job fails: the system kills a process that takes too much memory.
_TRIES = 3
_POLL_SECONDS = 0.25


def chunk_spans(dataset: Path, end: int, chunk_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield the bytes of each chunk of a file up to `end`: about `chunk_bytes` of whole lines, by content alone."""
    begin = 0
    with dataset.open("rb") as file:
        while begin < end:
            file.seek(begin + chunk_bytes - 1)
            file.readline()
            until = min(file.tell(), end)
            yield begin, until
            begin = until


def tokenise(
    dataset: Path,
    folder: Path,
    make: MakeChunk,
    *,
    end: int,
    chunk_bytes: int,
    processes: int,
    progress: BytesProgress,
) -> list[ChunkInfo]:
    """Make the chunks of a file in a folder, except the whole ones that are already there.

    end: of the bytes that are tokenised. Raises `TrainingFailed`: of `make`, the first one in the order of the file;
    disk_full; tokenise_crashed.
    """
    for left in folder.glob(".*.tokens.*"):
        left.unlink()  # of a process that was killed at it
    work = _ChunkQueue(folder, make, enumerate(chunk_spans(dataset, end, chunk_bytes)))
    count = min(processes, max(1, -(-end // chunk_bytes)))
    try:
        while work.advance(count):
            progress(work.bytes_done, end)
    finally:
        work.stop()
    progress(end, end)
    for stale in folder.glob("*.tokens"):
        if int(stale.stem) >= len(work.infos):
            stale.unlink()
    return [work.infos[number] for number in range(len(work.infos))]


@dataclass
class _Chunk:
    number: int
    begin: int
    end: int
    tries: int = 0


class _Worker:
    """A process that makes one chunk after another."""

    def __init__(self, folder: Path, make: MakeChunk) -> None:
        self.chunk: _Chunk | None = None
        self.pipe, theirs = multiprocessing.Pipe()
        self._done = mmap.mmap(-1, 8)  # shared with the process
        parent = os.getpid()
        # Not `multiprocessing.Process`, which closes stdin first, that another thread may be reading.
        self.pid = os.fork()
        if not self.pid:
            _serve(theirs, self._done, folder, make, parent)
        theirs.close()

    @property
    def bytes_done(self) -> int:
        """The bytes that are done of its current chunk."""
        return int.from_bytes(self._done[:8], "little") if self.chunk is not None else 0

    def begin(self, chunk: _Chunk) -> None:
        """Make a chunk."""
        self.chunk, self._done[:8] = chunk, bytes(8)
        chunk.tries += 1
        # A process that has just died is found at its pipe.
        with contextlib.suppress(BrokenPipeError):
            self.pipe.send((chunk.number, chunk.begin, chunk.end))

    def take(self) -> ChunkInfo | tuple[str, str] | None:
        """Return the result of the chunk: its info, or a failure's code and detail; None if the process is dead."""
        try:
            return self.pipe.recv()
        except (EOFError, ConnectionResetError):
            return None

    def stop(self) -> int:
        """Kill the process. Returns its exit code, -9 if it was killed."""
        os.kill(self.pid, signal.SIGKILL)
        _, status = os.waitpid(self.pid, 0)
        self.pipe.close()
        return os.waitstatus_to_exitcode(status)


@dataclass
class _ChunkQueue:
    folder: Path
    make: MakeChunk
    spans: Iterator[tuple[int, tuple[int, int]]]
    infos: dict[int, ChunkInfo] = field(default_factory=dict[int, ChunkInfo])
    workers: list[_Worker] = field(default_factory=list[_Worker])
    again: list[_Chunk] = field(default_factory=list[_Chunk])
    failures: dict[int, TrainingFailed] = field(default_factory=dict[int, TrainingFailed])
    bytes_of_whole: int = 0

    @property
    def bytes_done(self) -> int:
        return self.bytes_of_whole + sum(worker.bytes_done for worker in self.workers)

    def advance(self, count: int) -> bool:
        """Give `count` processes a chunk to make, and take their results. Returns False when all chunks are done.

        Raises the first failure, once every chunk before it is whole.
        """
        for _ in range(count - len(self.workers)):
            self.workers.append(_Worker(self.folder, self.make))
        for worker in self.workers:
            if worker.chunk is None and (chunk := self._next()) is not None:
                worker.begin(chunk)
        busy = {worker.pipe: worker for worker in self.workers if worker.chunk is not None}
        for pipe in connection.wait(list(busy), timeout=_POLL_SECONDS) if busy else ():
            self._take(busy[pipe])  # pyright: ignore[reportArgumentType]
        if self.failures:
            first = min(self.failures)
            if not any(w.chunk is not None and w.chunk.number < first for w in self.workers) and not self.again:
                raise self.failures[first]
        return bool(busy)

    def stop(self) -> None:
        for worker in self.workers:
            worker.stop()

    def _next(self) -> _Chunk | None:
        if self.again:
            return self.again.pop()
        if self.failures:
            return None
        number, span = next(self.spans, (0, None))
        return None if span is None else _Chunk(number, *span)

    def _take(self, worker: _Worker) -> None:
        chunk, result = worker.chunk, worker.take()
        assert chunk is not None
        worker.chunk = None
        if isinstance(result, ChunkInfo):
            self.infos[chunk.number] = result
            self.bytes_of_whole += result.end - result.begin
            return
        if result is not None:
            self.failures[chunk.number] = TrainingFailed(*result)
            return
        self.workers.remove(worker)
        how = worker.stop()
        if chunk.tries < _TRIES:
            self.again.append(chunk)
            return
        self.failures[chunk.number] = TrainingFailed(
            "tokenise_crashed",
            f"the process that tokenises bytes {chunk.begin} to {chunk.end} of the dataset ended {_TRIES} times by "
            f"itself, at last with {how}; memory is the usual cause if it was killed (-9): lower "
            "SYNTH_TOKENISE_PROCESSES, or look at the trainer's log",
        )


def _serve(pipe: Any, done: mmap.mmap, folder: Path, make: MakeChunk, parent: int) -> NoReturn:
    """Make the chunks that the parent requests, until the parent ends or stops this process."""

    def report(count: int) -> None:
        done[:8] = count.to_bytes(8, "little")
        if os.getppid() != parent:
            os._exit(1)

    try:
        # The signals are for the parent to answer.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        # The processes run in parallel, one a core; and the threads of a parent do not exist in its child.
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        torch.set_num_threads(1)
        while True:
            while not pipe.poll(_POLL_SECONDS):
                report(0)
            number, begin, end = pipe.recv()
            pipe.send(_outcome(folder, make, number, begin, end, report))
    except BaseException:  # noqa: BLE001  (nothing of the parent's stack may run in this process)
        traceback.print_exc()
    finally:
        os._exit(1)


def _outcome(
    folder: Path, make: MakeChunk, number: int, begin: int, end: int, report: Callable[[int], None]
) -> ChunkInfo | tuple[str, str]:
    path = chunk_path(folder, number)
    try:
        return check_chunk(path, begin=begin, end=end) or make(begin, end, path, report)
    except TrainingFailed as failed:
        return failed.code, failed.detail
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        return (
            "disk_full",
            f"the tokens of the dataset do not fit on the disk of {folder.parent}: {error.strerror} at byte {begin} of "
            "the dataset; expected room for 2 to 5 bytes a token; free some, or set SYNTH_WORK_DIR to a larger disk",
        )
    except MemoryError:
        os._exit(1)  # the parent requests the chunk again, when another process may have freed memory
    except Exception as error:  # noqa: BLE001  (the edge of a process: its parent fails with it)
        traceback.print_exc()
        return "internal", f"{type(error).__name__}: {error}"
