"""The replies of one model, a line each in a file that grows: a run that was interrupted continues with the rest."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from synth.console.errors import UsageProblem

Json = dict[str, Any]


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The reply of a model to a row, or why there is none.

    row, sample: the row's number from 1, and the index of its reply, from 0. request: the digest of the request's body.
    message: of the assistant. model: the id that the API returns, which may be more precise than the requested one.
    seconds: from the request to the whole reply, without the pauses of a busy API. logprobs: as the API returns them.
    failure: why there is no reply; the next run sends such a row again. cost_known: whether the API billed these token
    counts.
    """

    row: int
    sample: int = 0
    request: str
    message: Json = {}
    finish_reason: str = ""
    model: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0
    logprobs: Any = None
    failure: str = ""
    cost_known: bool = True


class AnswerFile:
    """The replies of one model. In memory is only where each of them stands in the file."""

    def __init__(self, folder: Path, model: str) -> None:
        """folder: is made if it is missing. A last line that an interrupted run left half is removed."""
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{_file_name(model)}.jsonl"
        self._places: dict[tuple[int, int], tuple[str, int]] = {}
        #: Of rows whose last request the API did not accept, by row.
        self.failures: dict[int, str] = {}
        self._file = self.path.open("a+b")
        self._read()

    def has(self, row: int, sample: int, request: str) -> bool:
        """Return whether the file has the reply to this very request."""
        return self._places.get((row, sample), ("", 0))[0] == request

    def add(self, answer: Answer) -> None:
        """Append a reply; it is on the disk when this returns."""
        self._file.seek(0, os.SEEK_END)
        place = self._file.tell()
        self._file.write(msgspec.json.encode(answer) + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self._note(answer, place)

    def get(self, row: int, sample: int, request: str) -> Answer | None:
        """Return the reply to a request; None if there is none."""
        if not self.has(row, sample, request):
            return None
        self._file.seek(self._places[row, sample][1])
        return msgspec.json.decode(self._file.readline(), type=Answer)

    def close(self) -> None:
        self._file.close()

    def _read(self) -> None:
        self._file.seek(0)
        place = 0
        for number, line in enumerate(iter(self._file.readline, b""), start=1):
            if not line.endswith(b"\n"):
                self._file.truncate(place)
                return
            try:
                answer = msgspec.json.decode(line, type=Answer)
            except (msgspec.DecodeError, msgspec.ValidationError) as error:
                raise UsageProblem(
                    f"this is no reply of a model: {error}",
                    fix="remove the line, or give another folder with --out",
                    where=f"{self.path}:{number}",
                ) from error
            self._note(answer, place)
            place += len(line)

    def _note(self, answer: Answer, place: int) -> None:
        if answer.failure:
            self.failures[answer.row] = answer.failure
        else:
            self.failures.pop(answer.row, None)
            self._places[answer.row, answer.sample] = (answer.request, place)


def digest_of(body: Json) -> str:
    """Return what identifies a request: 128 bits of the SHA-256 of its body."""
    return hashlib.sha256(msgspec.json.encode(body, order="sorted")).hexdigest()[:32]


def answers_of(file: AnswerFile, row: int, requests: list[str]) -> Iterator[Answer]:
    """Yield the replies of a row that the file has, in the order of their samples. requests: the digest of each."""
    for sample, request in enumerate(requests):
        if (answer := file.get(row, sample, request)) is not None:
            yield answer


def _file_name(model: str) -> str:
    """Return a file name for a model's id. Two ids never share one."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "_", model)[:80]
    return plain if plain == model else f"{plain}-{hashlib.sha256(model.encode()).hexdigest()[:8]}"
