"""Tasks: work, not events. A fact has many readers; a task has exactly one owner."""

from __future__ import annotations

import msgspec

from synth.catalogue import Role


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """Something that exactly one owner does, on `work.<kind>.<pool>.<org>.<job>[.<i>]`.

    It says only whose job it is: everything that its owner needs is in that job's log.
    """

    kind: str
    pool: str
    org: str
    job_id: str
    index: int | None = None

    @property
    def subject(self) -> str:
        tail = "" if self.index is None else f".{self.index}"
        return f"work.{self.kind}.{self.pool}.{self.org}.{self.job_id}{tail}"


#: Who takes a kind of task, and who alone may queue it: training on rollouts is due when its policy is served,
#: training on a file as soon as the job is verified (decision 16).
TASKS: dict[str, tuple[Role, tuple[Role, ...]]] = {
    "serve": (Role.INFERENCE, (Role.VERIFIER,)),
    "collect": (Role.ROLLOUTS, (Role.VERIFIER,)),
    "train": (Role.TRAINER, (Role.INFERENCE, Role.VERIFIER)),
}
