"""The fine-tuning jobs and files of an OpenAI account: behind its API, or in a folder that was exported from it."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Protocol, cast

import httpx

from synth.cli.api.client import backoff
from synth.cli.api.task_app import excerpt
from synth.cli.config import ConfigValue
from synth.cli.connections.clients import open_http
from synth.cli.errors import CliError, NotAuthorised, NotFound, Unreachable, UsageProblem

Json = dict[str, Any]

#: Answers after which the same request may succeed.
_BUSY = frozenset({408, 409, 429, 500, 502, 503, 504})
_PAGE = 100
_PIECE = 1 << 20


class AccountSource(Protocol):
    """An account, as its owner may read it. A file or job that is gone raises `NotFound`."""

    def jobs(self) -> Iterator[Json]: ...

    def checkpoints(self, job_id: str) -> list[Json]: ...

    def evaluations(self) -> Iterator[Json]: ...

    def file(self, file_id: str) -> Json: ...

    def download(self, file_id: str, to: IO[bytes]) -> None: ...


class HostedAccount:
    """An account behind OpenAI's API. patience_s: how long a request is sent again while the API is busy or away."""

    def __init__(self, address: ConfigValue, key: ConfigValue, *, patience_s: float) -> None:
        self._http = open_http(address, key=key, timeout=httpx.Timeout(60.0, connect=10.0))
        self._root = address.text.rstrip("/")
        self._key = key
        self._patience_s = patience_s

    def jobs(self) -> Iterator[Json]:
        return self._pages("/fine_tuning/jobs")

    def checkpoints(self, job_id: str) -> list[Json]:
        return [*self._pages(f"/fine_tuning/jobs/{job_id}/checkpoints")]

    def evaluations(self) -> Iterator[Json]:
        return self._pages("/evals")

    def file(self, file_id: str) -> Json:
        return self._json(f"/files/{file_id}")

    def download(self, file_id: str, to: IO[bytes]) -> None:
        """Write the content of a file. A download that breaks off begins again."""
        url = f"{self._root}/files/{file_id}/content"
        deadline = time.monotonic() + self._patience_s
        for attempt in itertools.count():
            to.seek(0)
            to.truncate()
            try:
                with self._http.stream("GET", url) as reply:
                    if reply.status_code == 200:
                        for piece in reply.iter_bytes(_PIECE):
                            to.write(piece)
                        return
                    reply.read()
                failure = self._failure(reply, url)
            except httpx.TransportError as error:
                failure, reply = self._away(error, url), None
            self._pause(attempt, reply, failure, deadline)

    def _pages(self, path: str) -> Iterator[Json]:
        after: dict[str, str] = {}
        while True:
            page = self._json(path, {"limit": str(_PAGE), **after})
            items = cast(list[Json], page.get("data") or [])
            yield from items
            if not page.get("has_more") or not items or after.get("after") == items[-1].get("id"):
                return
            after = {"after": str(items[-1]["id"])}

    def _json(self, path: str, params: dict[str, str] | None = None) -> Json:
        url = self._root + path
        deadline = time.monotonic() + self._patience_s
        for attempt in itertools.count():
            try:
                reply = self._http.get(url, params=params)
            except httpx.TransportError as error:
                reply, failure = None, self._away(error, url)
            else:
                if reply.status_code == 200:
                    return _object(reply, url)
                failure = self._failure(reply, url)
            self._pause(attempt, reply, failure, deadline)
        raise AssertionError("unreachable")

    def _pause(self, attempt: int, reply: httpx.Response | None, failure: CliError, deadline: float) -> None:
        """Wait before the next try. Raises the failure if another try cannot help or would come too late."""
        retry_after = reply.headers.get("retry-after", "") if reply is not None else ""
        pause = max(backoff(attempt), float(retry_after) if retry_after.replace(".", "", 1).isdecimal() else 0.0)
        if (reply is not None and reply.status_code not in _BUSY) or time.monotonic() + pause > deadline:
            raise failure
        time.sleep(pause)

    def _away(self, error: httpx.TransportError, url: str) -> CliError:
        fix = self._http.fix("try again later; what is downloaded is kept", error)
        return Unreachable(f"OpenAI cannot be reached ({self._http.reason(error)})", fix=fix, where=url)

    def _failure(self, reply: httpx.Response, url: str) -> CliError:
        reason = _message(reply)
        if reply.status_code == 401:
            fix = "the key may be revoked: create another one, or read an export with --from FOLDER"
            return NotAuthorised(f"OpenAI refuses {self._key.label}: {reason}", fix=fix, where=url)
        if reply.status_code == 403:
            fix = "give the key read access to Fine-tuning, Files and Evals, or use one of its project's owner"
            return NotAuthorised(f"{self._key.label} may not read this: {reason}", fix=fix, where=url)
        if reply.status_code == 404:
            return NotFound(f"it is not in the account: {reason}", where=url)
        fix = "try again later; what is downloaded is kept" if reply.status_code in _BUSY else ""
        return CliError(f"OpenAI answers HTTP {reply.status_code}: {reason}", fix=fix, where=url)


class ExportedAccount:
    """A folder of exported files: objects of the API as JSON or JSONL, and the contents of files.

    A content is found by its file's id at the beginning of its name, else by the name that its `file` object has.
    """

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise UsageProblem("there is no such folder", expected="a folder of exported files", where=str(folder))
        self._objects: dict[str, dict[str, Json]] = {}
        self._contents: list[Path] = []
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            objects = _read_objects(path)
            if objects is None:
                self._contents.append(path)
            for item in objects or ():
                self._objects.setdefault(str(item["object"]), {})[str(item["id"])] = item

    def jobs(self) -> Iterator[Json]:
        return iter([*self._objects.get("fine_tuning.job", {}).values()])

    def checkpoints(self, job_id: str) -> list[Json]:
        of_any = self._objects.get("fine_tuning.job.checkpoint", {}).values()
        return [item for item in of_any if item.get("fine_tuning_job_id") == job_id]

    def evaluations(self) -> Iterator[Json]:
        return iter([*self._objects.get("eval", {}).values()])

    def file(self, file_id: str) -> Json:
        return self._objects.get("file", {}).get(file_id) or {"id": file_id, "filename": self._content(file_id).name}

    def download(self, file_id: str, to: IO[bytes]) -> None:
        with self._content(file_id).open("rb") as content:
            while piece := content.read(_PIECE):
                to.write(piece)

    def _content(self, file_id: str) -> Path:
        named = str(self._objects.get("file", {}).get(file_id, {}).get("filename", ""))
        by_id = [path for path in self._contents if path.name.startswith(file_id)]
        matches = by_id or [path for path in self._contents if path.name == named]
        if len(matches) != 1:
            what = f"{len(matches)} exported files have this name" if matches else "it is not in the export"
            raise NotFound(what, fix=f"name its content {file_id}.jsonl", where=file_id)
        return matches[0]


def section(item: Json, name: str) -> Json:
    """An object within one of the API; {} for a missing one, or for a value that is no object."""
    value = item.get(name)
    return cast(Json, value) if isinstance(value, dict) else {}


_OBJECTS = ("fine_tuning.job", "fine_tuning.job.checkpoint", "file", "eval")


def _read_objects(path: Path) -> list[Json] | None:
    """Read the API's objects of an exported file. Returns None for a file that is a content, such as a dataset."""
    try:
        with path.open(encoding="utf-8") as lines:
            first = json.loads(lines.readline() or "0") if path.suffix == ".jsonl" else None
            if first is not None and not (isinstance(first, dict) and cast(Json, first).get("object") in _OBJECTS):
                return None
            if path.suffix not in (".json", ".jsonl"):
                return None
            lines.seek(0)
            values = (
                json.load(lines) if path.suffix == ".json" else [json.loads(line) for line in lines if line.strip()]
            )
    except (ValueError, RecursionError) as error:
        if path.suffix != ".json":
            return None
        fix = "export it again, or remove it from the folder"
        raise UsageProblem(
            f"this is no JSON: {error}", expected="an object of OpenAI's API", fix=fix, where=str(path)
        ) from error
    if isinstance(values, dict):
        values = cast(Json, values).get("data") if cast(Json, values).get("object") == "list" else [values]
    items = [cast(Json, item) for item in cast(list[Any], values or []) if isinstance(item, dict)]
    return [item for item in items if item.get("object") in _OBJECTS and isinstance(item.get("id"), str)]


def _object(reply: httpx.Response, url: str) -> Json:
    try:
        value = reply.json()
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise CliError(f"OpenAI answers no JSON object: {excerpt(reply.text)}", where=url)
    return cast(Json, value)


def _message(reply: httpx.Response) -> str:
    try:
        return str(reply.json()["error"]["message"])[:300]
    except (ValueError, KeyError, TypeError):
        return excerpt(reply.text)
