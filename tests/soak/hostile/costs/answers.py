"""Answers of a task app that cost much to read, up to nearly as long as `SYNTH_MAX_ANSWER_BYTES` allows."""

from __future__ import annotations

from synth.rollouts.settings import RolloutsSettings
from tests.unit.loops.hostile_json import hostile_bodies

#: Of the longest answer that is read: one nearly as long, and of each kind one that takes some seconds to decode.
_LONGEST, _SHARE = 0.95, 0.15


def costly_answers() -> list[tuple[str, bytes]]:
    """What costs, and the answer as bytes of HTTP."""
    most = RolloutsSettings.model_fields["max_answer_bytes"].default
    answers: list[tuple[str, bytes]] = []
    for i, name in enumerate(hostile_bodies(1 << 10)):
        for share in (_LONGEST, _SHARE) if i == 0 else (_SHARE,):
            answers.append((f"{name}, {share:.0%}", _http(hostile_bodies(int(most * share))[name])))
    return answers


def _http(body: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
    return head % len(body) + body
