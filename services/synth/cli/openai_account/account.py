"""The fine-tuning jobs and files of an OpenAI account: behind its API, or in a folder that was exported from it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Protocol, cast

from synth.cli.api.hosted import HostedApi, Json
from synth.client.connections.config import ConfigValue
from synth.console.errors import NotFound, UsageProblem

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
        fix = "try again later; downloaded files are kept"
        self._api = HostedApi(address, key, name="OpenAI", patience_s=patience_s, fix=fix)

    def jobs(self) -> Iterator[Json]:
        return self._pages("/fine_tuning/jobs")

    def checkpoints(self, job_id: str) -> list[Json]:
        return [*self._pages(f"/fine_tuning/jobs/{job_id}/checkpoints")]

    def evaluations(self) -> Iterator[Json]:
        return self._pages("/evals")

    def file(self, file_id: str) -> Json:
        return self._api.get(f"/files/{file_id}")

    def download(self, file_id: str, to: IO[bytes]) -> None:
        self._api.download(f"/files/{file_id}/content", to)

    def _pages(self, path: str) -> Iterator[Json]:
        after: dict[str, str] = {}
        while True:
            page = self._api.get(path, {"limit": str(_PAGE), **after})
            items = cast(list[Json], page.get("data") or [])
            yield from items
            if not page.get("has_more") or not items or after.get("after") == items[-1].get("id"):
                return
            after = {"after": str(items[-1]["id"])}


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
    """Return a nested object of an API object; {} if it is missing or no object."""
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
