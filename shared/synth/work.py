"""Tasks: work, not events. A fact has many readers; a task has exactly one owner."""

from __future__ import annotations

import msgspec

from synth.events.catalogue import Role


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """Something that exactly one owner does, on `work.<kind>.<pool>.<org>.<job>.<term>[.<i>]`.

    It says only whose job it is: everything that its owner needs is in that job's log.
    term: how often the job had been resumed when it was queued. A subject holds one task, so the tasks of a resumed
    job need subjects of their own: those of the term before may not have been acknowledged yet.
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


#: Who takes a kind of task, and who alone may queue it: training on rollouts is due when its policy is served,
#: training on a file as soon as the job is verified (decision 16).
TASKS: dict[str, tuple[Role, tuple[Role, ...]]] = {
    "serve": (Role.INFERENCE, (Role.VERIFIER,)),
    "collect": (Role.ROLLOUTS, (Role.VERIFIER,)),
    "train": (Role.TRAINER, (Role.INFERENCE, Role.VERIFIER)),
}
