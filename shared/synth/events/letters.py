"""The operator's decisions on dead letters. The key is the id of the letter's job or file."""

from __future__ import annotations

from synth.events.catalogue import Event, Role, event


@event("letter.retried", by=Role.GATEWAY)
class LetterRetried(Event, frozen=True, kw_only=True):
    """A dead letter is handled again. letter: its sequence in `DEAD`.

    how: "queued" if its event or task was queued again, "resumed" if its parked job was resumed.
    """

    letter: int
    how: str
    requested_by: str


@event("letter.dropped", by=Role.GATEWAY)
class LetterDropped(Event, frozen=True, kw_only=True):
    """A dead letter is settled: nothing more will be done about it. letter: its sequence in `DEAD`."""

    letter: int
    requested_by: str
