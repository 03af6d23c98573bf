"""What an operator decided on a dead letter. The key is the job's or the file's that the letter was of."""

from __future__ import annotations

from synth.events.catalogue import Event, Role, event


@event("letter.retried", by=Role.GATEWAY)
class LetterRetried(Event, frozen=True, kw_only=True):
    """A dead letter is handled again. letter: its sequence in `DEAD`.

    how: "queued" where its event or task was queued again, "resumed" where its parked job was.
    """

    letter: int
    how: str
    requested_by: str


@event("letter.dropped", by=Role.GATEWAY)
class LetterDropped(Event, frozen=True, kw_only=True):
    """A dead letter is settled: nothing more will be done about it. letter: its sequence in `DEAD`."""

    letter: int
    requested_by: str
