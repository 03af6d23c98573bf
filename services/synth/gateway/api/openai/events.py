"""A job's events in the shape of OpenAI's list: newest first, each a message or a set of metrics."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from synth.bus.connection import Connection
from synth.bus.recorded import Recorded
from synth.errors import Transient
from synth.events import EvalCompleted, Heartbeat, JobCreated, TrainStep
from synth.gateway.api.openai.places import Method, name_fields
from synth.gateway.api.openai.views import losses
from synth.gateway.presentation.vocabulary import describe_event, is_shown
from synth.gateway.read_model.event_log import MAX_SEQUENCE_DIGITS, read_page
from synth.gateway.read_model.projection import JobRow

_LEVELS = {"info": "info", "warning": "warn", "error": "error"}
_PREFIX = "ftevent_"
_FIRST_WINDOW = 512
_LARGEST_WINDOW = 1 << 16
_PAGE = 1000


class FineTuningEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event of a job. type: metrics for training steps and evaluations, message for the rest."""

    id: str
    object: str = "fine_tuning.job.event"
    created_at: int
    level: str
    message: str
    type: str
    data: dict[str, Any]


def parse_event_id(id: str) -> int | None:
    """Parse an event's id into its sequence; None for any other text."""
    number = id.removeprefix(_PREFIX)
    return int(number) if number != id and number.isdecimal() and len(number) <= MAX_SEQUENCE_DIGITS else None


async def read_newest_first(
    bus: Connection, row: JobRow, *, before: int | None, limit: int, within: float
) -> tuple[list[Recorded], bool]:
    """Read up to `limit` listed events of a job before a sequence, and whether there are more.

    The log can only be read forwards, so it is read in windows that begin earlier each time. Raises `Transient` after
    `within` seconds.
    """
    results: list[Recorded] = []
    end = row.job.last_seq + 1 if before is None else min(before, row.job.last_seq + 1)
    width = _FIRST_WINDOW
    try:
        async with asyncio.timeout(within):
            while end > row.created_seq and len(results) <= limit:
                start = max(row.created_seq, end - width)
                window = await _window(bus, row, start, end)
                results += [event for event in reversed(window) if _is_listed(event)]
                end, width = start, min(width * 4, _LARGEST_WINDOW)
    except TimeoutError as error:
        what = f"the events of {row.job.id} could not be read within {within:g} s (SYNTH_LOG_READ_S)"
        raise Transient(what) from error
    return results[:limit], len(results) > limit


def event_object(recorded: Recorded, method: Method, *, suffix: str | None = None) -> FineTuningEvent:
    """Return an event in OpenAI's shape. method, suffix: the method and the label of its job."""
    words = describe_event(recorded, "sft")
    assert words is not None
    event, level, message, data = recorded.event, _LEVELS[words.level], words.message, words.data
    if isinstance(event, JobCreated) and suffix:
        level, message = "warn", f"{message}; the suffix {suffix!r} labels it, and is not part of the model's id"
    if isinstance(event, TrainStep):
        data = {"step": event.step, "total_steps": event.of, **losses(event.values), **event.values}
    return FineTuningEvent(
        id=f"{_PREFIX}{recorded.seq}",
        created_at=int(recorded.time.timestamp()),
        level=level,
        message=name_fields(message, method),
        type="metrics" if isinstance(event, TrainStep | EvalCompleted) else "message",
        data=data,
    )


def _is_listed(recorded: Recorded) -> bool:
    return is_shown(recorded) and not isinstance(recorded.event, Heartbeat)


async def _window(bus: Connection, row: JobRow, start: int, end: int) -> list[Recorded]:
    """Return a job's events from `start` up to, but without, `end`."""
    events: list[Recorded] = []
    after = start - 1
    while True:
        page = await read_page(bus, f"*.*.{row.org}.{row.job.id}", after=after, limit=min(_PAGE, end - 1 - after))
        events += [event for event in page.events if event.seq < end]
        if not page.more or not page.events or page.events[-1].seq >= end - 1:
            return events
        after = page.events[-1].seq
