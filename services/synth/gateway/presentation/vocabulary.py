"""One table from our states and events to the words of the two other APIs that the gateway speaks.

Rules of the Synth API's clients that the table keeps. A job has exactly one terminal event, `workflow.*` for SFT and
`rl.job.*` for the rest; no other event bears a name that a client takes for an end; a cancelled job ends by its status
alone. A printer of RL events drops each that holds one of two words anywhere, so these are broken up. An event that
is not shown does not count as a sign of life (`projection.JobRow.heard`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, cast

import msgspec

from synth.bus.recorded import Recorded, UnknownEvent
from synth.events import TrainStep
from synth.gateway.presentation import messages
from synth.jobs.lifecycle import State

Level = Literal["info", "warning", "error"]


class Status(NamedTuple):
    """A state in the words of both APIs."""

    synth: str
    openai: str


STATUS: dict[State, Status] = {
    State.CREATED: Status("queued", "validating_files"),
    State.VALIDATED: Status("queued", "queued"),
    State.VERIFIED: Status("queued", "queued"),
    State.STARTED: Status("running", "running"),
    State.CANCELLING: Status("running", "running"),
    State.PAUSING: Status("running", "running"),
    State.PAUSED: Status("running", "paused"),
    State.SUCCEEDED: Status("succeeded", "succeeded"),
    State.FAILED: Status("failed", "failed"),
    State.REJECTED: Status("failed", "failed"),
    State.CANCELLED: Status("cancelled", "cancelled"),
}


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """An event in the Synth API's words. message: a sentence with its figures. data: its facts, without references."""

    type: str
    level: Level
    message: str
    data: messages.Data


@dataclass(frozen=True)
class Row:
    """How one type of event is said. sft, rl: its name for a job of that kind. when: which of them are shown."""

    sft: str
    rl: str
    say: Callable[[Any], str] | str
    data: Callable[[Any], messages.Data]
    level: Level = "info"
    when: Callable[[Any], bool] = lambda _: True


_FACTS = messages.facts()
_WRONG = messages.problem_data

#: Every event of a job; None is one that is not shown.
EVENTS: dict[str, Row | None] = {
    "job.created": Row(
        "sft.created",
        "rl.job.created",
        messages.created,
        messages.facts("kind", "model", "training_file", "task_url"),
    ),
    "job.validated": Row("sft.config.prepared", "rl.job.validated", messages.validated, messages.validated_data),
    "job.rejected": Row("workflow.failed", "rl.job.failed", messages.rejected, _WRONG, "error"),
    "job.verified": Row("sft.job.verified", "rl.job.verified", messages.verified, messages.verified_data),
    "job.refused": Row("workflow.failed", "rl.job.failed", messages.rejected, _WRONG, "error"),
    "job.started": Row("sft.training.started", "rl.train.started", messages.started, messages.facts("attempt")),
    "job.cancel_requested": Row("sft.cancel_requested", "rl.cancel_requested", "asked to stop", _FACTS),
    "job.pause_requested": Row("sft.pause_requested", "rl.pause_requested", "asked to pause", _FACTS),
    "job.paused": Row("sft.paused", "rl.paused", messages.paused, _FACTS),
    "job.resumed": Row("sft.resumed", "rl.resumed", "resumed, and queued again", _FACTS),
    "job.withdrawn": Row("sft.withdrawn", "rl.withdrawn", "cancelled while nobody ran it", _FACTS),
    "job.cancelled": Row("sft.stopped", "rl.stopped", messages.stopped, _FACTS),
    "job.succeeded": Row("workflow.completed", "rl.job.completed", messages.succeeded, messages.succeeded_data),
    "job.failed": Row("workflow.failed", "rl.job.failed", messages.failed, _WRONG, "error"),
    "rollout.requested": Row(
        "sft.eval.started",
        "rl.eval.started",
        messages.evaluating,
        messages.evaluating_data,
        when=lambda e: e.mode == "eval",
    ),
    "rollout.completed": None,
    "rollout.failed": Row(
        "sft.rollout.dropped",
        "rl.rollout.dropped",
        messages.dropped,
        messages.facts("rollout_id", "iteration", "mode", "seed", "tries"),
        "warning",
    ),
    "rollout.batch": Row(
        "sft.rollout.batch",
        "rl.rollout.batch",
        messages.batched,
        messages.facts("iteration", "sequences", "groups_kept", "groups_dropped", "values"),
    ),
    "rollout.blocked": Row("sft.rollout.blocked", "rl.rollout.blocked", messages.failed, _WRONG, "error"),
    "eval.completed": Row(
        "sft.eval.summary",
        "rl.eval.summary",
        messages.evaluated,
        messages.facts("model", "instances", "values", "step"),
    ),
    "policy.published": Row(
        "sft.policy.published",
        "rl.policy.published",
        messages.policy_published,
        messages.facts("version", "attempt", "kind"),
    ),
    "policy.loaded": Row("sft.policy.loaded", "rl.policy.loaded", messages.policy_loaded, _FACTS),
    "policy.refused": Row("sft.policy.refused", "rl.policy.refused", messages.failed, _WRONG, "error"),
    "checkpoint.saved": Row(
        "sft.checkpoint.saved",
        "rl.checkpoint.saved",
        messages.checkpoint,
        messages.facts("step", "version", "size"),
    ),
    "train.step": Row("sft.progress", "rl.train.step", messages.step, _FACTS),
    "train.warned": Row("sft.training.warned", "rl.train.warned", messages.warned, messages.warned_data, "warning"),
    "train.resumed": Row("sft.training.resumed", "rl.train.resumed", messages.resumed, _FACTS, "warning"),
    "train.handed_back": Row(
        "sft.training.handed_back", "rl.train.handed_back", messages.handed_back, _FACTS, "warning"
    ),
    "model.published": Row("sft.model.published", "rl.model.published", messages.model_published, messages.model_data),
    "watch.heartbeat": Row("sft.worker.alive", "rl.heartbeat", messages.heartbeat, _FACTS),
    "queue.waiting": Row("sft.queue.waiting", "rl.queue.waiting", messages.waits, _FACTS, "warning"),
    "blob.expired": None,
}

#: What a job that only evaluates says in another way.
_EVALUATION: dict[str, Row] = {
    "job.started": Row("sft.eval.started", "rl.eval.started", messages.evaluation_started, messages.facts("attempt")),
}

#: Our figures that a client is told of unasked; the others it must name.
HEADLINE_METRICS = (
    "loss",
    "reward_mean",
    "reward_std",
    "validation_loss",
    "ppo_kl",
    "entropy",
    "grad_norm",
    "lr",
    "tokens_per_second",
    "seconds_train",
    "wait_seconds",
    "eval.reward_mean",
    "eval.reward_std",
)
_METRICS = {
    "ppo_kl": "train.kl",
    "tokens_per_second": "train.tokens_per_s",
    "validation_loss": "val.loss",
    "wait_seconds": "perf.rollout_s",
    "seconds_train": "perf.train_s",
}
_OURS = {theirs: ours for ours, theirs in _METRICS.items()}
_UNSPEAKABLE = re.compile("(?<=mod)(?=al)|(?<=hatc)(?=het)", re.IGNORECASE)


def said(recorded: Recorded, kind: str | None) -> Said | None:
    """An event in the words of a job of this kind ("sft", "eval", or any other); None for one that is not shown."""
    row = _EVALUATION.get(recorded.type) if kind == "eval" else None
    row = row or EVENTS.get(recorded.type)
    if row is None or not shown(recorded):
        return None
    event: Any = recorded.event
    message, data = recorded.type, messages.Data()
    if not isinstance(event, UnknownEvent):  # a newer version's: that it happened still counts
        message, data = row.say if isinstance(row.say, str) else row.say(event), row.data(event)
    if kind == "sft":
        validated = isinstance(event, TrainStep) and "validation_loss" in event.values
        return Said(
            type="sft.validation.summary" if validated else row.sft, level=row.level, message=message, data=data
        )
    return Said(type=row.rl, level=row.level, message=_speakable(message), data=_speakable(data))


def shown(recorded: Recorded) -> bool:
    """Whether an event is shown at all: to a client that sees no other, it is the sign that a job lives."""
    row = EVENTS.get(recorded.type)
    return row is not None and (isinstance(recorded.event, UnknownEvent) or row.when(recorded.event))


def metric_name(ours: str) -> str:
    """The Synth API's name of one of our figures."""
    return _METRICS.get(ours) or (ours if ours.startswith("eval.") else f"train.{ours}")


def our_metric(theirs: str) -> str:
    """The reverse: our name of the figure that a client asks for."""
    return _OURS.get(theirs) or theirs.removeprefix("train.")


def _speakable(value: Any) -> Any:
    """The same with an invisible break inside the words that make a line vanish."""
    if isinstance(value, str):
        return _UNSPEAKABLE.sub("\u200b", value)
    if isinstance(value, dict):
        return {_speakable(k): _speakable(v) for k, v in cast(dict[Any, Any], value).items()}
    if isinstance(value, list):
        return [_speakable(v) for v in cast(list[Any], value)]
    return value
