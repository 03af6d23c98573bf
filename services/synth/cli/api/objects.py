"""What the backend answers, typed: the fields that `-o json` prints are these, and stay."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from synth.errors import Problem
from synth.jobs.lifecycle import TERMINAL, TRANSITIONS

#: Lifecycle facts that end a job: nothing of that job follows them.
ENDS = frozenset(fact for (_, fact), after in TRANSITIONS.items() if after in TERMINAL)


class Waiting(msgspec.Struct, kw_only=True):
    """What a job lacks. position: 1 is next; seconds: for how long."""

    need: str
    pool: str = "default"
    position: int = 1
    seconds: float = 0.0


class Warned(msgspec.Struct, kw_only=True):
    """What the collapse watch saw in the figures of a job's last `over` steps."""

    step: int
    rule: str
    value: float
    threshold: float
    over: int
    action: str
    problem: Problem


class Job(msgspec.Struct, kw_only=True):
    """A job as the backend knows it. A value that was not a number is None."""

    id: str
    state: str
    kind: str | None = None
    name: str = ""
    source_model: str | None = None
    stand_in: str | None = None
    model: str | None = None
    step: int | None = None
    steps: int | None = None
    attempt: int | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    code: str | None = None
    problems: list[Problem] = []
    warnings: list[str] = []
    warned: dict[str, Warned] = {}
    waiting: Waiting | None = None
    values: dict[str, float | None] = {}
    rollouts: dict[str, int] = {}
    eval: dict[str, float | None] | None = None
    tags: dict[str, Any] = {}
    config: str | None = None
    resolved: dict[str, Any] | None = None
    origins: dict[str, str] | None = None
    last_seq: int = 0

    @property
    def over(self) -> bool:
        return self.state in TERMINAL


class JobEvent(msgspec.Struct, kw_only=True):
    """One event of a job's log, as the stream and the pages carry it."""

    seq: int
    type: str
    time: datetime = datetime.fromtimestamp(0, UTC)
    job_id: str = ""
    data: dict[str, Any] = {}


class EventPage(msgspec.Struct, kw_only=True):
    """Events after a cursor, in order. more: whether the log goes on behind them."""

    events: list[JobEvent]
    last_seq: int = 0
    more: bool = False


class LineProblem(msgspec.Struct, kw_only=True):
    """What is wrong with one line of a file."""

    line: int
    reason: str
    path: str = ""


class File(msgspec.Struct, kw_only=True):
    """An uploaded file. status: processing, ready or failed."""

    id: str
    status: str
    filename: str = ""
    purpose: str = ""
    bytes: int = 0
    sha256: str = ""
    rows: int | None = None
    messages: int | None = None
    characters: int | None = None
    tokens: int | None = None
    lengths: list[int] = []
    images: int | None = None
    images_trimmed: int | None = None
    bad_lines: int | None = None
    problems: list[LineProblem] = []
    created_at: datetime | None = None


class Model(msgspec.Struct, kw_only=True):
    """A model that can be served: a base on the cluster's disk, or one that a job made."""

    id: str
    kind: str = ""
    base: str | None = None
    stand_in: str | None = None
    job_id: str | None = None
    step: int | None = None
    created_at: datetime | None = None


class Checkpoint(msgspec.Struct, kw_only=True):
    """A checkpoint of a job. model: the id that it serves under; values: of its step."""

    model: str
    step: int
    bytes: int = 0
    created_at: datetime | None = None
    values: dict[str, float | None] = {}


class ModelFile(msgspec.Struct, kw_only=True):
    """One file of a model, as it can be downloaded."""

    name: str
    size: int
    sha256: str = ""


class Point(msgspec.Struct, kw_only=True):
    """One value of one metric."""

    name: str
    step: int
    value: float | None
    time: datetime | None = None


class Account(msgspec.Struct, kw_only=True):
    """Whose key it is, and what it may do."""

    org: str
    org_name: str = ""
    key_id: str = ""
    key_name: str = ""
    scopes: list[str] = []


class Key(msgspec.Struct, kw_only=True):
    """An API key without its secret. state: live, expired or revoked."""

    id: str
    name: str
    state: str
    scopes: list[str]
    created_at: datetime
    created_by: str
    expires_at: datetime | None = None
    revoked_at: datetime | None = None


class MadeKey(Key, kw_only=True):
    """An API key when it is made: the one time that it is shown."""

    key: str


class Organisation(msgspec.Struct, kw_only=True):
    """A tenant of the cluster."""

    id: str
    name: str
    created_at: datetime


class MadeOrganisation(Organisation, kw_only=True):
    """An organisation when it is made, with its first key."""

    first_key: MadeKey
