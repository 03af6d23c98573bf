"""Shell completions of ids of jobs, files and models, which the backend returns within a second."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import typer

from synth.console.plain_text import printable

if TYPE_CHECKING:
    from synth.client import Client

#: Seconds that somebody who presses TAB is kept waiting at most.
_DEADLINE_S = 1.0
_MOST = 100


def complete_jobs(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Return ids of jobs, newest first, and `@last`."""
    pairs = _ask(
        ctx, lambda client: ((j.id, f"{j.state} {j.name}") for j in client.jobs.list(prefix=incomplete, limit=_MOST))
    )
    return [*pairs, ("@last", "the newest job")]


def complete_files(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Return ids of files, newest first."""
    return _ask(ctx, lambda client: ((f.id, f"{f.status} {f.filename}") for f in client.files.list(limit=_MOST)))


def complete_models(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Return ids of models: the organisation's, newest first, then the bases."""
    return _ask(ctx, lambda client: ((m.id, m.kind) for m in client.models.list()))


def _ask(ctx: typer.Context, question: Callable[[Client], Iterable[tuple[str, str]]]) -> list[tuple[str, str]]:
    """Return the answer of the backend that the command line names so far; nothing if none comes in time."""
    from pathlib import Path

    import httpx

    from synth.client import Client
    from synth.client.connections.config import find_default_env_file, resolve
    from synth.errors import SynthError

    params = ctx.find_root().params
    files = tuple(Path(file) for file in params.get("env_file") or ()) or (find_default_env_file(),)
    try:
        config = resolve(backend=params.get("backend"), env_files=files, optional=files)
        with Client(config, retry_budget=0.0, timeout=_DEADLINE_S) as client:
            return [(printable(word), printable(about)) for word, about in question(client)]
    except (SynthError, httpx.HTTPError, OSError):
        # A shell shows no messages while it completes: without a backend there is nothing to offer.
        return []
