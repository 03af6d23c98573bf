"""Writes traces to a file, one after the other: JSONL of ours or of the clients' sessions, or a database."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import msgspec

from synth.api.traces import TraceDetail, TraceSummary
from synth.cli.traces.database import TraceDatabase
from synth.cli.traces.images import ImageGone, Images
from synth.cli.traces.read_ahead import ahead
from synth.client import Client
from synth.traces.v3 import v3_trace
from synth.transcripts.transcript import Transcript, TranscriptTurn


class Exported(msgspec.Struct, kw_only=True):
    """The counts of an export. expired: traces no longer kept. images_gone: traces written without an expired image."""

    path: str
    traces: int = 0
    expired: int = 0
    images_gone: int = 0


def export_traces(
    client: Client,
    path: Path,
    *,
    kind: Literal["synth", "v3", "sqlite"],
    inline: bool,
    limit: int | None,
    **wanted: Any,
) -> Exported:
    """Write the traces that the API has for these parameters, oldest first. The file is whole, or is not there."""
    done = Exported(path=str(path))
    images = Images(client.image) if inline else None
    partial = path.with_name(f".{path.name}.{os.getpid()}")

    def read(summary: TraceSummary) -> tuple[TraceDetail, bool]:
        trace = client.traces.get(summary.id)
        try:
            return (_with_images(trace, images) if images is not None else trace), False
        except ImageGone:
            return trace, True

    try:
        with _writer(partial, kind) as write:
            for _, (trace, images_gone) in ahead(client.traces.list(limit=limit, sort="oldest", **wanted), read):
                if trace.transcript is None:
                    done.expired += 1
                    continue
                write(trace)
                done.traces += 1
                done.images_gone += images_gone
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return done


@contextmanager
def _writer(path: Path, kind: Literal["synth", "v3", "sqlite"]) -> Iterator[Any]:
    """Yield the function that writes a trace."""
    if kind == "sqlite":
        database = TraceDatabase(path)
        try:
            yield lambda trace: database.add(v3_trace(trace))
            database.commit()
        finally:
            database.close()
        return
    with path.open("wb") as out:
        yield lambda trace: out.write(msgspec.json.encode(v3_trace(trace) if kind == "v3" else trace) + b"\n")


def _with_images(trace: TraceDetail, images: Images) -> TraceDetail:
    transcript = trace.transcript
    if transcript is None:
        return trace
    turns = [_turn_with_images(turn, images) for turn in transcript.turns]
    whole: Transcript = msgspec.structs.replace(transcript, turns=turns)
    return msgspec.structs.replace(trace, transcript=whole)


def _turn_with_images(turn: TranscriptTurn, images: Images) -> TranscriptTurn:
    messages = [images.inline(message) if isinstance(message, dict) else message for message in turn.messages]
    return msgspec.structs.replace(turn, messages=messages)
