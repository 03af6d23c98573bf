"""Dead letters as the API shows them to an operator."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import msgspec

LetterState = Literal["open", "retried", "dropped"]


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A message that a service could not handle. id: its place in the stream of dead letters.

    subject: the subject of the message, an event's or a task's. reason: why the service gave it up. org, about: its
    organisation, and the job or the file; null if the subject does not contain them. seq: of the event in the log, 0
    for a task. state: "open" until an operator has decided; settled_by: that key's id.
    """

    id: int
    object: str = "dead_letter"
    service: str
    subject: str
    org: str | None
    about: str | None
    reason: str
    seq: int
    bytes: int
    created_at: datetime
    state: LetterState = "open"
    settled_by: str | None = None
    settled_at: datetime | None = None


class DeadLetterPayload(msgspec.Struct, frozen=True, kw_only=True):
    """A dead letter with its body as text, which may contain users' text. cut: whether the body is longer than this."""

    letter: DeadLetter
    payload: str
    cut: bool = False


class SettledLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A dead letter that was just retried or dropped. how: "queued" again, its job "resumed", or "dropped"."""

    letter: DeadLetter
    how: str
