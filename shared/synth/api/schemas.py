"""The structs of the API's answers, which the gateway writes and `synthctl` reads.

This module imports neither the bus nor HTTP, so that the thin client can import it. The names of the classes are the
names of the schemas in the API document, and their docstrings are its descriptions.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

import msgspec

from synth.access import Organisation, Scope
from synth.api.job_clock import JobTimes
from synth.chat.template_source import RenderOptions
from synth.errors import Problem
from synth.estimates.verdict import Verdict
from synth.events import LineProblem, TrainWarned
from synth.jobs.lifecycle import State


class Rollouts(msgspec.Struct, frozen=True, kw_only=True):
    """How many rollouts of a job are done, and how many are not part of their group: failed for good, or cut off."""

    completed: int = 0
    failed: int = 0


class JudgeTotals(msgspec.Struct, frozen=True, kw_only=True):
    """The work of a job's judges. judged: rollouts with scores; unscored: rollouts without, which are left out.

    calls, tokens: of the judges' models, failed calls included; unreadable: calls whose answer could not be read. cost:
    by the operator's prices, 0 without any. calls_per_rollout: of the judged and the left-out rollouts.
    """

    judged: int = 0
    unscored: int = 0
    calls: int = 0
    tokens: int = 0
    unreadable: int = 0
    cost: float = 0.0
    calls_per_rollout: float = 0.0


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """What a job waits for. need: the service; position: in the order in which workers of this pool take jobs,
    that of the organisation with the fewest places first; 1 is next.

    A job whose configuration or task app is still being checked waits for "validator" or "verifier", and has no
    position among the jobs that wait for a worker.
    """

    need: str
    pool: str
    position: int
    since: datetime


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A job in the API.

    kind: "sft", "rl" or "eval", null until it is validated, unless its client sends it. name: of its configuration
    file. label: the configuration's `[model].label`. model: the id that the result serves under. linked_job_id: the
    failed job whose last checkpoint it continues from. metadata: the client's own. stand_in: the local model that
    stands in for the source model's base. step: the last one that is durable; provisional_step: the newest one beyond
    it, which no checkpoint covers yet. values: of the last durable step; eval: of the last evaluation. waiting: the
    queue, null once an attempt owns it. times: how long it was queued, and how long it ran. judge: null if rollouts are
    not judged. warned: the collapse watch's last sign, by its rule. code: a stable word for why it failed. reason: why
    it succeeded before its last step. verdict: whether the model is better than its source, of a job that succeeded or
    that the collapse watch ended; null if the job did not evaluate both. last_seq: the last event of the job.
    """

    id: str
    object: str = "job"
    kind: str | None = None
    state: State
    name: str
    label: str | None = None
    source_model: str | None = None
    training_file: str | None = None
    validation_file: str | None = None
    model: str | None = None
    linked_job_id: str | None = None
    step: int = 0
    provisional_step: int | None = None
    steps: int | None = None
    trained_tokens: int = 0
    attempt: int = 0
    created_at: datetime
    updated_at: datetime
    started_at: datetime | None = None
    ended_at: datetime | None = None
    times: JobTimes = JobTimes()
    code: str | None = None
    reason: str = ""
    verdict: Verdict | None = None
    problems: list[Problem] = []
    warnings: list[str] = []
    warned: dict[str, TrainWarned] = {}
    waiting: Waiting | None = None
    values: dict[str, float] = {}
    rollouts: Rollouts = Rollouts()
    judge: JudgeTotals | None = None
    eval: dict[str, float] | None = None
    tags: dict[str, Any] = {}
    metadata: dict[str, Any] = {}
    stand_in: str | None = None
    last_seq: int


class JobWithConfig(Job, frozen=True, kw_only=True):
    """A job and its configuration; a list of jobs leaves these three fields out.

    config: the text as it was submitted. resolved: every setting with its default, null until the job is validated.
    origins: the source of each setting's value.
    """

    config: str | None = None
    resolved: dict[str, Any] | None = None
    origins: dict[str, str] | None = None


class SubmittedJob(JobWithConfig, frozen=True, kw_only=True):
    """A new job. repeats: the first job with the same submission within the last minute; null if there is none."""

    repeats: str | None = None


class JobCheck(msgspec.Struct, frozen=True, kw_only=True):
    """The result of checking a job without submitting it. problems: why it would be refused; empty if it would run.

    resolved: every setting with its default, null if the configuration has problems. unchecked: the uploaded files that
    are still being checked, and may still be refused. rendering: the chat template and the options with which the rows
    of a file that is still to be uploaded are rendered; null if the job names none, or the cluster does not have the
    model's files.
    """

    problems: list[Problem] = []
    warnings: list[str] = []
    resolved: dict[str, Any] | None = None
    unchecked: list[str] = []
    rendering: RenderOptions | None = None


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint that is not deleted. model: the id that it serves under; bytes: of all its files.

    values: every metric of its step.
    """

    model: str
    object: str = "checkpoint"
    job_id: str
    step: int
    bytes: int
    created_at: datetime
    values: dict[str, float] = {}


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One value of one metric."""

    name: str
    step: int
    value: float
    time: datetime


class Points(msgspec.Struct, frozen=True, kw_only=True):
    """Metrics, ascending by step. more: whether later steps were left out."""

    points: list[Point]
    more: bool


class EventView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An event as the API shows it, in a page and on a stream. job_id, or file_id for `file.*`."""

    seq: int
    type: str
    time: datetime
    job_id: str | None = None
    file_id: str | None = None
    data: Any = None


class EventPage(msgspec.Struct, frozen=True, kw_only=True):
    """Events as the API pages them. last_seq: the cursor of the next page; more: whether there is one now."""

    events: list[EventView]
    last_seq: int
    more: bool


class File(msgspec.Struct, frozen=True, kw_only=True):
    """An uploaded file as the API shows it. status: processing, ready or failed; problems: the first ones, by line.

    characters: of all message text; tokens: about how many those are; lengths[i]: conversations of 2^i up to 2^(i+1)
    characters. images: that its rows show. pairs: rows that are preference pairs: all or none. prompts: rows whose
    last message is the user's. unanswered: rows without any message of an assistant. converted: how many rows came in
    another shape than the one that is trained on, by that shape. annotations: in how many rows a column stands that no
    model is shown, by its name; of prompts also the fields that a grader may refer to.
    """

    id: str
    object: str = "file"
    filename: str
    purpose: str
    bytes: int
    sha256: str
    status: str = "processing"
    rows: int | None = None
    messages: int | None = None
    characters: int | None = None
    tokens: int | None = None
    lengths: list[int] = []
    images: int | None = None
    pairs: int | None = None
    prompts: int | None = None
    unanswered: int | None = None
    converted: dict[str, int] = {}
    annotations: dict[str, int] = {}
    bad_lines: int = 0
    problems: list[LineProblem] = []
    created_at: datetime


class Deleted(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a deletion. object: the kind of the deleted object."""

    id: str
    object: str
    deleted: bool = True


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """A model in the API. kind: full, lora or base; base: the base model below it, null for a base.

    stand_in: the local model whose weights really run under this id, or ran under its base; null for the real ones.
    """

    id: str
    object: str = "model"
    kind: str
    base: str | None = None
    stand_in: str | None = None
    job_id: str | None = None
    step: int | None = None
    created_at: datetime | None = None


class ModelFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a model, as it can be downloaded. size: in bytes."""

    name: str
    size: int
    sha256: str


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """An API key without its secret. created_by: the id of the key that made it.

    url: it is part of a URL, which opens chat completions and nothing else; model: the one model that it opens there.
    bus: it opens your organisation's events on the bus, and nothing else.
    """

    id: str
    object: Literal["key"] = "key"
    name: str
    state: Literal["live", "expired", "revoked"]
    scopes: tuple[Scope, ...]
    created_at: datetime
    created_by: str
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    url: bool = False
    model: str | None = None
    bus: bool = False


class MadeKey(Key, frozen=True, kw_only=True):
    """An API key as it is shown once. key: the value for SYNTH_API_KEY.

    path: of the base URL that a URL key opens, with the key in it; below this API's address.
    """

    key: str
    path: str | None = None


class LoggedLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line that a service logged about a job. trace: of an error; fields: the line's structured data."""

    time: datetime
    service: str
    level: str
    message: str
    trace: str | None = None
    fields: dict[str, Any] = {}


class ApprovedDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A machine whose request for keys was approved. expires_at: it must fetch them before."""

    code: str
    expires_at: datetime


class Feed(msgspec.Struct, frozen=True, kw_only=True):
    """A feed of your organisation's events on the bus. It ends after a while without a listener on its subject.

    subject: the subject to listen on. after: the `seq` after which it begins. heartbeat_s: seconds between two
    heartbeats when there is no event.
    """

    object: Literal["feed"] = "feed"
    subject: str
    after: int
    heartbeat_s: float


class MadeOrganisation(Organisation, frozen=True, kw_only=True):
    """An organisation and its first key, which may do everything in it."""

    first_key: MadeKey


class EnvironmentKeyChat(msgspec.Struct, frozen=True, kw_only=True):
    """That a task app's key opens chat completions, and nothing else.

    made_by: the id of the API key that granted it, with which it ends.
    """

    state: Literal["live", "ended"]
    scopes: tuple[Scope, ...] = (Scope.INFERENCE,)
    made_by: str
    made_at: datetime
    expires_at: datetime
    revoked_at: datetime | None = None


class EnvironmentKeyView(msgspec.Struct, frozen=True, kw_only=True):
    """A task app's key without its secret. origin: the one address that it is sent to, null until it has opened one.

    offered_until: until when one without an origin is offered to a task app that `stored_by` names. offered_to: the
    only origin that it has been offered to. chat: null if it opens none.
    """

    id: str
    object: Literal["environment_key"] = "environment_key"
    origin: str | None = None
    stored_by: str
    stored_at: datetime
    offered_until: datetime | None = None
    offered_to: str | None = None
    chat: EnvironmentKeyChat | None = None


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """Who calls: the organisation, and the key that is used."""

    org: str
    org_name: str
    key_id: str
    key_name: str
    scopes: tuple[Scope, ...]


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """A limit of an organisation. used, limit: in the unit of `what`; a limit of null is none.

    setting: the operator's setting for it. at: where it is counted; a gateway counts its own limits alone.
    """

    name: str
    what: str
    used: float
    limit: float | None
    setting: str
    at: Literal["cluster", "gateway"] = "cluster"


class LimitList(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of the caller's organisation, as this gateway applies them."""

    org: str
    data: list[Limit]
    object: Literal["list"] = "list"
