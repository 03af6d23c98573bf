"""Answers of a task app that cost much to read: nearly as long as `SYNTH_MAX_ANSWER_BYTES` allows."""

from __future__ import annotations

from synth.rollouts.settings import RolloutsSettings
from tests.unit.loops.hostile_json import hostile_bodies

#: Of the longest answer that is read.
_SHARES = (0.65, 0.95)


def costly_answers() -> list[tuple[str, bytes]]:
    """What costs, and the answer as bytes of HTTP."""
    most = RolloutsSettings.model_fields["max_answer_bytes"].default
    answers: list[tuple[str, bytes]] = []
    for name in hostile_bodies(1 << 10):
        for share in _SHARES:
            answers.append((f"{name}, {share:.0%}", _http(hostile_bodies(int(most * share))[name])))
    return answers


def _http(body: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
    return head % len(body) + body
