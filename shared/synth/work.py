"""Tasks: work, not events. A fact has many readers; a task has exactly one owner."""

from __future__ import annotations

import msgspec

from synth.events.catalogue import Role


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """Something that exactly one owner does, on `work.<kind>.<pool>.<org>.<job>.<term>[.<i>]`.

    It names only its job: everything else that its owner needs is in that job's log. term: how often the job had been
    resumed when it was queued. A subject holds one task, so the tasks of a resumed job need subjects of their own: the
    tasks of the term before may not have been acknowledged yet.
    """

    kind: str
    pool: str
    org: str
    job_id: str
    term: int = 0
    index: int | None = None

    @property
    def subject(self) -> str:
        tail = "" if self.index is None else f".{self.index}"
        return f"work.{self.kind}.{self.pool}.{self.org}.{self.job_id}.{self.term}{tail}"


def task_of(subject: str) -> Task | None:
    """Return the task of this subject; None if it is not a task's. The body only repeats the subject."""
    parts = subject.split(".")
    if (
        len(parts) not in (6, 7)
        or parts[0] != "work"
        or parts[1] not in TASKS
        or not all(_is_number(p) for p in parts[5:])
    ):
        return None
    _, kind, pool, org, job_id = parts[:5]
    term, index = int(parts[5]), int(parts[6]) if len(parts) == 7 else None
    return Task(kind=kind, pool=pool, org=org, job_id=job_id, term=term, index=index)


def _is_number(text: str) -> bool:
    # Of 64 bits, as no other can be written.
    return text.isascii() and text.isdigit() and len(text) < 19


class Redelivery(msgspec.Struct, frozen=True, kw_only=True):
    """An event that is to be handled again, on `work.retry.<queue>.<org>.<key>.<seq>`.

    seq: its place in the log. letter: the dead letter that it became, by its sequence in `DEAD`.
    """

    seq: int
    letter: int


#: Who takes a kind of task, and who may queue it: training on rollouts is due when its policy is served, training on a
#: file as soon as the job is verified (decision 16); the gateway queues a dead letter's task again.
TASKS: dict[str, tuple[Role, tuple[Role, ...]]] = {
    "serve": (Role.INFERENCE, (Role.VERIFIER, Role.GATEWAY)),
    "collect": (Role.ROLLOUTS, (Role.VERIFIER, Role.GATEWAY)),
    "train": (Role.TRAINER, (Role.INFERENCE, Role.VERIFIER, Role.GATEWAY)),
}
