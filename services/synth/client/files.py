"""Files: upload as a stream, and download with a check of the digest."""

from __future__ import annotations

import hashlib
import time
from builtins import list as List
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from synth.api.schemas import File, Job
from synth.client.api import Api
from synth.client.counted_file import CountedFile
from synth.client.retries import backoff
from synth.client.transports import Blocking, blocking, blocking_iterator
from synth.console.errors import CliError, TimedOut, Unreachable, UsageProblem
from synth.errors import Problem
from synth.events import LineProblem

_UPLOAD_TIMEOUT_S = 600.0  # after the last byte, the backend puts the file in its place
_TRIES = 4


class AsyncFiles:
    """The files of the organisation: datasets."""

    def __init__(self, api: Api) -> None:
        self._api = api

    async def upload(
        self,
        path: str | Path,
        *,
        purpose: str = "fine-tune",
        name: str | None = None,
        sent: Callable[[int], None] = lambda n: None,
    ) -> File:
        """Upload a file as a stream. The same bytes again give the same file.

        path: a JSONL or Parquet file. name: on the cluster, instead of the path's. sent: called with the bytes sent.
        The cluster then checks the rows, which `wait` waits for.
        """
        path = Path(path)
        try:
            opened = CountedFile(path, sent)
        except OSError as error:
            what = "there is no such file" if isinstance(error, FileNotFoundError) else f"cannot be read ({error})"
            raise UsageProblem(what, expected="a JSONL or Parquet file", where=str(path)) from error
        with opened as body:
            reply = await self._api.send(
                "POST",
                "/files",
                data={"purpose": purpose},
                files={"file": (name or path.name, body, "application/jsonl")},
                usual=_UPLOAD_TIMEOUT_S,
            )
            return self._api.decode(reply.content, File)

    async def wait(self, file_id: str, *, timeout: float = 600.0, name: str | None = None) -> File:
        """Wait until a file is checked, and return it.

        timeout: seconds, then `TimedOut`. name: of the file, for messages. Raises `UsageProblem` with the lines that
        are wrong.
        """
        deadline, delay = time.monotonic() + timeout, 0.05
        while (file := await self.get(file_id)).status == "processing":
            if time.monotonic() + delay > deadline:
                fix = f"look again with `synthctl files get {file_id}`; is the files service healthy?"
                raise TimedOut(f"{file_id} is still being checked after {timeout:.0f} s", fix=fix)
            await self._api.transport.sleep(delay)
            delay = min(1.0, delay * 1.5)
        if file.status == "failed":
            raise UsageProblem.of(line_problems(file.problems, file.bad_lines, name or file.filename))
        return file

    async def list(self, *, limit: int | None = None) -> AsyncGenerator[File]:
        """Yield files, newest first; pages are read as they are needed."""
        async for file in self._api.pages("/files", File, limit=limit, params={}):
            yield file

    async def get(self, file_id: str) -> File:
        """Read one file's record."""
        return await self._api.request("GET", _path(file_id), File)

    async def jobs(self, file_id: str) -> List[Job]:
        """List the jobs that used a file."""
        return await self._api.list_of(f"{_path(file_id)}/jobs", Job)

    async def delete(self, file_id: str) -> None:
        """Delete a file; one that is gone already is a `NotFound`."""
        await self._api.send("DELETE", _path(file_id))

    async def download(self, file_id: str, path: str | Path) -> Path:
        """Download a file as it was uploaded, check its digest, and return its path.

        path: of the file to write; it is complete, or it is not there.
        """
        file = await self.get(file_id)
        await fetch(self._api, f"{_path(file_id)}/content", {}, Path(path), sha256=file.sha256, name=file.filename)
        return Path(path)


class Files(Blocking):
    """The files of the organisation: datasets."""

    upload = blocking(AsyncFiles.upload)
    wait = blocking(AsyncFiles.wait)
    list = blocking_iterator(AsyncFiles.list)
    get = blocking(AsyncFiles.get)
    jobs = blocking(AsyncFiles.jobs)
    delete = blocking(AsyncFiles.delete)
    download = blocking(AsyncFiles.download)


async def fetch(api: Api, url: str, params: dict[str, Any], path: Path, *, sha256: str, name: str) -> None:
    """Download a body to a file, which appears under its path once its digest was checked. name: for messages."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    for attempt in range(_TRIES):
        digest = hashlib.sha256()
        try:
            async with api.stream("GET", url, params=params, budget=0) as reply:
                with part.open("wb") as body:
                    async for piece in api.transport.pieces(reply):
                        body.write(piece)
                        digest.update(piece)
        except (httpx.TransportError, Unreachable) as error:
            if attempt == _TRIES - 1:
                part.unlink(missing_ok=True)
                if isinstance(error, Unreachable):
                    raise
                raise Unreachable(f"the connection to the backend broke ({error})", where=name) from error
            await api.transport.sleep(backoff(attempt))
            continue
        if not sha256 or digest.hexdigest() == sha256:
            part.rename(path)
            return
    part.unlink(missing_ok=True)
    raise CliError(f"{name} came with other bytes than it should have, {_TRIES} times", fix="try again", where=url)


def line_problems(kept: list[LineProblem], bad_lines: int | None, name: str) -> list[Problem]:
    """Return the problems of a file by line, and how many more lines have some. kept: the first problems."""
    problems: list[Problem] = []
    for p in kept:
        what, _, rest = p.reason.partition("; expected ")
        expected, _, fix = rest.partition("; ")
        what = f"{p.path}: {what}" if p.path not in ("", "$") else what
        problems.append(Problem(what=what, expected=expected, fix=fix, where=f"{name}:{p.line}"))
    more = (bad_lines or 0) - len({p.line for p in kept})
    if more > 0:
        problems.append(Problem(what=f"{more} more lines have problems", where=name))
    return problems or [Problem(what="the file cannot be trained on", where=name)]


def _path(file_id: str) -> str:
    return f"/files/{quote(file_id, safe='')}"
