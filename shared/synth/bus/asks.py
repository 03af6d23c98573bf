"""Questions that one service asks another and waits for the answer to (decision 12): subjects, messages, deadlines.

A question is no fact: it is not in the log, and nobody but its asker sees the answer.
"""

from __future__ import annotations

import msgspec

VERIFY = "ask.verify"
VERIFY_WITHIN_S = 50.0

#: Who asks and who answers each, as services.
ASKS: dict[str, tuple[str, str]] = {VERIFY: ("gateway", "verifier")}


#: What a task app answers to a key that is not its own.
KEY_REFUSED = (400, 401, 403)


class VerifyTaskApp(msgspec.Struct, frozen=True, kw_only=True):
    """Is this task app there, and which environment key of the organisation opens it?"""

    org: str
    url: str


class TaskAppAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one environment key, or of none (key_id None). status: the HTTP answer that decided, if any came."""

    key_id: str | None
    ok: bool
    path: str
    status: int | None
    reason: str


class TaskAppReport(msgspec.Struct, frozen=True, kw_only=True):
    """Every key of the organisation, newest first, and what came of those that were tried. task_name: if one worked."""

    key_ids: list[str]
    attempts: list[TaskAppAttempt]
    task_name: str | None = None
