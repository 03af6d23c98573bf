"""The table from our states and events to the words of the OpenAI API and the Synth API.

The table keeps these rules of the Synth API's clients. A job has exactly one terminal event, `workflow.*` for SFT and
`rl.job.*` for the rest; no other event has a name that a client reads as an end; only the status shows the end of a
cancelled job. A printer of RL events drops each event that contains one of two words, so these words are broken up.
Another printer reads `[word]` in a message as markup and drops it, so the bracket is separated. An event that is not
shown does not count as a sign of life (`projection.JobRow.last_shown_at`).
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
    """The names of a state in both APIs."""

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


class DescribedEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event in the Synth API's words. message: a sentence with its figures. data: its facts, without references."""

    type: str
    level: Level
    message: str
    data: messages.Data


_FACTS = messages.pick_fields()
_PROBLEM = messages.problem_data


@dataclass(frozen=True)
class EventDescription:
    """The description of one type of event. sft, rl: its name for a job of that kind. shown_if: whether it is shown.

    message: makes it, or a template with the fields of the event `e`.
    """

    sft: str
    rl: str
    message: Callable[[Any], str] | str
    data: Callable[[Any], messages.Data] = _FACTS
    level: Level = "info"
    shown_if: Callable[[Any], bool] = lambda _: True


def _of_both(name: str, message: Callable[[Any], str] | str, **more: Any) -> EventDescription:
    """Describe an event whose names for both kinds of jobs differ in their first word alone."""
    return EventDescription(f"sft.{name}", f"rl.{name}", message, **more)


#: Every event of a job; None for an event that is not shown.
EVENT_DESCRIPTIONS: dict[str, EventDescription | None] = {
    "job.created": EventDescription(
        "sft.created",
        "rl.job.created",
        messages.job_created,
        messages.pick_fields("kind", "model", "training_file", "task_url"),
    ),
    "job.validated": EventDescription(
        "sft.config.prepared", "rl.job.validated", messages.job_validated, messages.job_validated_data
    ),
    "job.rejected": EventDescription("workflow.failed", "rl.job.failed", messages.job_rejected, _PROBLEM, "error"),
    "job.verified": _of_both("job.verified", messages.job_verified, data=messages.job_verified_data),
    "job.refused": EventDescription("workflow.failed", "rl.job.failed", messages.job_rejected, _PROBLEM, "error"),
    "job.started": EventDescription(
        "sft.training.started", "rl.train.started", messages.job_started, messages.pick_fields("attempt")
    ),
    "job.cancel_requested": _of_both("cancel_requested", "asked to stop"),
    "job.pause_requested": _of_both("pause_requested", "asked to pause"),
    "job.paused": _of_both("paused", messages.job_paused),
    "job.parked": _of_both("parked", messages.job_parked, data=_PROBLEM, level="warning"),
    "job.resumed": _of_both("resumed", "resumed, and queued again"),
    "job.withdrawn": _of_both("withdrawn", "cancelled while nobody ran it"),
    "job.cancelled": _of_both("stopped", "cancelled after step {e.step}"),
    "job.succeeded": EventDescription(
        "workflow.completed", "rl.job.completed", messages.job_succeeded, messages.job_succeeded_data
    ),
    "job.failed": EventDescription("workflow.failed", "rl.job.failed", messages.problem_text, _PROBLEM, "error"),
    "rollout.requested": _of_both(
        "eval.started",
        messages.eval_requested,
        data=messages.eval_requested_data,
        shown_if=lambda e: e.mode == "eval",
    ),
    "collection.started": None,
    "rollout.completed": None,
    "rollout.judged": None,
    "rollout.failed": _of_both(
        "rollout.dropped",
        messages.rollout_failed,
        data=messages.pick_fields("rollout_id", "iteration", "mode", "seed", "tries"),
        level="warning",
    ),
    "rollout.batch": _of_both(
        "rollout.batch",
        "iteration {e.iteration} is collected: {e.sequences} sequences, {e.groups_kept} groups kept,"
        " {e.groups_dropped} dropped",
        data=messages.pick_fields("iteration", "sequences", "groups_kept", "groups_dropped", "values"),
    ),
    "rollout.blocked": _of_both("rollout.blocked", messages.problem_text, data=_PROBLEM, level="error"),
    "eval.completed": _of_both(
        "eval.summary", messages.eval_completed, data=messages.pick_fields("model", "instances", "values", "step")
    ),
    "policy.published": _of_both(
        "policy.published",
        "policy version {e.version} is published",
        data=messages.pick_fields("version", "attempt", "kind"),
    ),
    "policy.loaded": _of_both("policy.loaded", "policy version {e.version} is served, after {e.seconds:.2g} s"),
    "policy.refused": _of_both("policy.refused", messages.problem_text, data=_PROBLEM, level="error"),
    "checkpoint.saved": _of_both(
        "checkpoint.saved",
        "checkpoint of step {e.step}, {e.size} bytes",
        data=messages.pick_fields("step", "version", "size"),
    ),
    "train.step": EventDescription("sft.progress", "rl.train.step", messages.train_step),
    # These clients would read this event as the end of the step.
    "train.progressed": None,
    "train.warned": EventDescription(
        "sft.training.warned", "rl.train.warned", messages.problem_text, messages.train_warned_data, "warning"
    ),
    "train.resumed": EventDescription(
        "sft.training.resumed", "rl.train.resumed", messages.train_resumed, level="warning"
    ),
    "train.handed_back": EventDescription(
        "sft.training.handed_back",
        "rl.train.handed_back",
        "attempt {e.attempt} hands the job back: {e.reason}",
        level="warning",
    ),
    "model.published": _of_both("model.published", "{e.model.id} can be used", data=messages.model_published_data),
    "watch.heartbeat": EventDescription("sft.worker.alive", "rl.heartbeat", "the job is {e.state}, nothing new"),
    "queue.waiting": _of_both(
        "queue.waiting",
        "waits for {e.need} in pool {e.pool}, number {e.position} in the queue, for {e.seconds:.0f} s",
        level="warning",
    ),
    "blob.expired": None,
    "model.deleted": None,
    "model.leased": None,
    "train.logged": None,
    "collection.logged": None,
    "policy.logged": None,
    "job.deleted": None,
    "letter.retried": None,
    "letter.dropped": None,
}
#: The events that have another description for an evaluation job.
_OF_EVALUATIONS: dict[str, EventDescription] = {
    "job.started": _of_both("eval.started", messages.evaluation_started, data=messages.pick_fields("attempt")),
}

#: Our figures that a client gets by default; it must name the others.
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
_BROKEN_UP = re.compile("(?<=mod)(?=al)|(?<=hatc)(?=het)", re.IGNORECASE)
#: The place at which rich begins to read a tag.
_TAG = re.compile(r"(?<=\[)(?=[a-z#/@])", re.IGNORECASE)
_BREAK = "\u200b"


def describe_event(recorded: Recorded, kind: str | None) -> DescribedEvent | None:
    """Describe an event of a job of this kind ("sft", "eval", or any other); None for an event that is not shown."""
    description = _OF_EVALUATIONS.get(recorded.type) if kind == "eval" else None
    description = description or EVENT_DESCRIPTIONS.get(recorded.type)
    if description is None or not is_shown(recorded):
        return None
    event: Any = recorded.event
    message, data = recorded.type, messages.Data()
    if not isinstance(event, UnknownEvent):  # an event of a newer version is shown by its type
        text, data = description.message, description.data(event)
        message = text.format(e=event) if isinstance(text, str) else text(event)
    message = _TAG.sub(_BREAK, message)
    if kind == "sft":
        validated = isinstance(event, TrainStep) and "validation_loss" in event.values
        return DescribedEvent(
            type="sft.validation.summary" if validated else description.sft,
            level=description.level,
            message=message,
            data=data,
        )
    return DescribedEvent(
        type=description.rl, level=description.level, message=_break_up_words(message), data=_break_up_words(data)
    )


def is_shown(recorded: Recorded) -> bool:
    """Return whether an event is shown; for a client, only shown events are a sign that the job lives."""
    description = EVENT_DESCRIPTIONS.get(recorded.type)
    return description is not None and (
        isinstance(recorded.event, UnknownEvent) or description.shown_if(recorded.event)
    )


def metric_name(ours: str) -> str:
    """Return the Synth API's name of one of our figures."""
    return _METRICS.get(ours) or (ours if ours.startswith("eval.") else f"train.{ours}")


def our_metric(theirs: str) -> str:
    """Return our name of a figure from the Synth API's name."""
    return _OURS.get(theirs) or theirs.removeprefix("train.")


def _break_up_words(value: Any) -> Any:
    """Insert an invisible break into the words that make the client drop a line."""
    if isinstance(value, str):
        return _BROKEN_UP.sub(_BREAK, value)
    if isinstance(value, dict):
        return {_break_up_words(k): _break_up_words(v) for k, v in cast(dict[Any, Any], value).items()}
    if isinstance(value, list):
        return [_break_up_words(v) for v in cast(list[Any], value)]
    return value
