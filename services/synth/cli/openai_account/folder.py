"""The folder of an import: `files/`, `jobs/`, `evals/`, and `import.json`, the record of complete downloads."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import msgspec

from synth.cli.openai_account.account import AccountSource, Json
from synth.cli.openai_account.bases import Needs
from synth.console.errors import CliError, UsageProblem

_ID = re.compile(r"[A-Za-z0-9_.:-]{1,200}")
_SUFFIX = re.compile(r"\.[A-Za-z0-9]{1,8}")
_IMAGE = b'"image_url"'


class Downloaded(msgspec.Struct, frozen=True):
    """A file that is here whole. path: below the folder; bytes, sha256: of its content."""

    path: str
    bytes: int
    sha256: str


class ImportRecord(msgspec.Struct):
    """The downloaded files by their ids."""

    files: dict[str, Downloaded] = {}


class ImportFolder:
    """A folder that an import writes and that the next one continues."""

    def __init__(self, path: Path) -> None:
        """Raises `UsageProblem` for a folder whose record cannot be read."""
        self.path = path
        self._record = path / "import.json"
        for name in ("files", "jobs", "evals"):
            (path / name).mkdir(parents=True, exist_ok=True)
        try:
            self._imported = msgspec.json.decode(self._record.read_bytes(), type=ImportRecord)
        except FileNotFoundError:
            self._imported = ImportRecord()
        except (msgspec.DecodeError, OSError) as error:
            fix = "remove this file; the downloads then begin again"
            raise UsageProblem(
                f"the record of the import cannot be read: {error}", fix=fix, where=str(self._record)
            ) from error

    def write_object(self, kind: str, item: Json) -> Path:
        """Write an object of the API as `KIND/ID.json`."""
        path = self.path / kind / f"{checked_id(item['id'])}.json"
        _replace(path, json.dumps(item, indent=2, ensure_ascii=False) + "\n")
        return path

    def write_once(self, name: str, text: str) -> bool:
        """Write a text file, unless there is one: it may have been edited. Returns whether it was written."""
        path = self.path / name
        if path.exists():
            return False
        _replace(path, text)
        return True

    def fetch(self, account: AccountSource, file_id: str, *, decode: bool = False) -> tuple[Path, bool]:
        """Download a file unless it is here. Returns its path, and whether it was downloaded.

        decode: its content may be in base64, as in a result file. Raises `NotFound` if the account no longer has it.
        """
        known = self._imported.files.get(file_id)
        if known is not None and _size(self.path / known.path) == known.bytes:
            return self.path / known.path, False
        described = account.file(checked_id(file_id))
        suffix = Path(str(described.get("filename", ""))).suffix
        name = f"files/{file_id}{suffix if _SUFFIX.fullmatch(suffix) else '.jsonl'}"
        with self._partial() as part:
            account.download(file_id, part)
            size, expected = part.tell(), described.get("bytes")
            if isinstance(expected, int) and size != expected:
                fix = "run the command again"
                raise CliError(f"{size:,} of its {expected:,} bytes arrived", fix=fix, where=file_id)
            if decode:
                size = _decode(part)
            digest = _digest(part)
            os.replace(part.name, self.path / name)
        self._imported.files[file_id] = Downloaded(name, size, digest)
        _replace(self._record, msgspec.json.format(msgspec.json.encode(self._imported)).decode() + "\n")
        return self.path / name, True

    @contextmanager
    def _partial(self) -> Iterator[IO[bytes]]:
        """Yield a new file's path in the folder; the file is removed at the end unless it was renamed."""
        with tempfile.NamedTemporaryFile(dir=self.path / "files", prefix=".part-", delete=False) as part:
            try:
                yield part
            finally:
                Path(part.name).unlink(missing_ok=True)


def checked_id(id: Any) -> str:
    """Return an id that is safe in a path and a URL. Raises `CliError` for any other text."""
    if not isinstance(id, str) or not _ID.fullmatch(id) or id.startswith("."):
        raise CliError(f"{str(id)[:80]!r} is no id of OpenAI's API", expected="letters, digits, - and _")
    return id


def read_needs(path: Path) -> Needs:
    """Count the rows of a dataset, and find their needs. No row is parsed: a dataset may have gigabytes."""
    rows, longest, images = 0, 0, False
    with path.open("rb") as lines:
        for line in lines:
            if line.strip():
                rows += 1
                images = images or _IMAGE in line
                longest = max(longest, len(line))
    return Needs(rows, images, longest)


def _decode(part: IO[bytes]) -> int:
    """Replace base64 by the CSV that it holds, in place. Returns the size."""
    part.seek(0)
    body = part.read()
    try:
        body = base64.b64decode(body, validate=True)
    except binascii.Error:
        return len(body)
    part.seek(0)
    part.truncate()
    part.write(body)
    return len(body)


def _digest(part: IO[bytes]) -> str:
    part.flush()
    part.seek(0)
    return hashlib.file_digest(part, "sha256").hexdigest()  # type: ignore[arg-type]


def _size(path: Path) -> int | None:
    return path.stat().st_size if path.is_file() else None


def _replace(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    part = path.with_name(f".{path.name}.part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)
