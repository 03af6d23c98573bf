"""The message of each event, one sentence with its figures, and its data for programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import msgspec

from synth.events import (
    EvalCompleted,
    JobCreated,
    JobFailed,
    JobParked,
    JobPaused,
    JobRefused,
    JobRejected,
    JobStarted,
    JobSucceeded,
    JobValidated,
    JobVerified,
    ModelPublished,
    PolicyRefused,
    RolloutBlocked,
    RolloutFailed,
    RolloutRequested,
    TrainResumed,
    TrainStep,
    TrainWarned,
)
from synth.models import parse_finetuned

Data = dict[str, Any]

#: The figures of `train.step` and `eval.completed` that fit in a line of text.
_HEADLINES = (
    ("loss", "loss"),
    ("reward_mean", "reward"),
    ("validation_loss", "validation loss"),
    ("ppo_kl", "kl"),
    ("grad_norm", "grad norm"),
    ("tokens_per_second", "tokens/s"),
)


def format_headlines(values: dict[str, float]) -> str:
    """Return the most important figures, in one line."""
    return ", ".join(f"{word} {values[name]:.4g}" for name, word in _HEADLINES if name in values)


def pick_fields(*names: str) -> Callable[[Any], Data]:
    """Return a function that returns these fields of an event, or all fields if there are no names."""

    def data(event: Any) -> Data:
        all_of_them = cast(Data, msgspec.to_builtins(event))
        return {name: all_of_them[name] for name in names} if names else all_of_them

    return data


def problem_data(e: JobRejected | JobRefused | JobFailed | JobParked | RolloutBlocked | PolicyRefused) -> Data:
    """Return an event's problems, with the field `detail` that clients read."""
    problems = e.problems if isinstance(e, JobRejected | JobRefused) else [e.problem]
    code = {
        JobRejected: "rejected",
        JobRefused: "refused",
        JobParked: "parked",
        RolloutBlocked: "blocked",
        PolicyRefused: "policy_refused",
    }
    return {
        "detail": "\n".join(p.text() for p in problems),
        "code": e.code if isinstance(e, JobFailed) else code[type(e)],
        "problems": msgspec.to_builtins(problems),
    } | _verdict_data(e)


def job_created(e: JobCreated) -> str:
    return f"job created from {e.config_name}" + (f" for {e.model}" if e.model else "")


def job_validated_data(e: JobValidated) -> Data:
    return {"model": e.job.get("model"), "kind": e.job.get("kind"), "warnings": e.warnings}


def job_validated(e: JobValidated) -> str:
    return " | ".join(["the configuration is right", *e.warnings])


def job_verified(e: JobVerified) -> str:
    parts = [f"model {e.source.id}"]
    if e.source.stand_in:
        made = parse_finetuned(e.source.id)
        what = f"the weights are those of {e.source.stand_in}, not of {e.source.id}"
        parts.append(f"STAND-IN: {f'it was made from {e.source.stand_in}, not from {made.base}' if made else what}")
    if e.task_url:
        parts.append(f"task app {e.task_name or ''} at {e.task_url}".replace("  ", " "))
    return "checked and queued: " + ", ".join(parts)


def job_verified_data(e: JobVerified) -> Data:
    return {"model": e.source.id, "stand_in": e.source.stand_in, "task_url": e.task_url, "task_name": e.task_name}


def job_rejected(e: JobRejected | JobRefused) -> str:
    return "the job cannot run: " + "; ".join(p.text() for p in e.problems[:5])


def job_started(e: JobStarted) -> str:
    return "training started" if e.attempt == 1 else f"attempt {e.attempt} goes on with the job"


def evaluation_started(e: JobStarted) -> str:
    return "evaluation started" if e.attempt == 1 else job_started(e)


def job_succeeded(e: JobSucceeded) -> str:
    figures = format_headlines(e.values)
    result = f"{e.model} is ready" if e.model else "done"
    steps = f" after {e.steps} steps" if e.steps else ""
    why = f" ({e.reason})" if e.reason else ""
    verdict = f"; {e.verdict.text()}" if e.verdict else ""
    return f"{result}{steps}{why}" + (f": {figures}" if figures else "") + verdict


def job_succeeded_data(e: JobSucceeded) -> Data:
    data: Data = {"fine_tuned_model": e.model, "steps": e.steps, "values": e.values}
    data |= {"reason": e.reason} if e.reason else {}
    return data | _verdict_data(e)


def _verdict_data(e: object) -> Data:
    verdict = e.verdict if isinstance(e, JobSucceeded | JobFailed) else None
    return {"verdict": msgspec.to_builtins(verdict)} if verdict else {}


def train_step(e: TrainStep) -> str:
    if e.values.get("skipped"):
        return f"step {e.step} of {e.of} skipped, nothing to learn from: {format_headlines(e.values)}"
    return f"step {e.step} of {e.of}: {format_headlines(e.values)}"


def train_warned_data(e: TrainWarned) -> Data:
    return pick_fields("step", "rule", "value", "threshold", "over", "action")(e) | {"detail": e.problem.text()}


def train_resumed(e: TrainResumed) -> str:
    loss = "" if e.loss_then is None or e.loss_now is None else f": loss {e.loss_then:.6g} then, {e.loss_now:.6g} now"
    return f"attempt {e.attempt} resumes after step {e.step}{loss}"


def eval_completed(e: EvalCompleted) -> str:
    return f"{e.model} over {e.instances} instances: {format_headlines(e.values)}"


def problem_text(e: JobFailed | RolloutBlocked | PolicyRefused | TrainWarned) -> str:
    verdict = e.verdict if isinstance(e, JobFailed) else None
    return e.problem.text() + (f"; {verdict.text()}" if verdict else "")


def job_paused(e: JobPaused) -> str:
    return f"paused after step {e.step}" + (f": {e.reason}" if e.reason else "")


def job_parked(e: JobParked) -> str:
    return f"waits until it is resumed: {e.problem.text()}"


def eval_requested(e: RolloutRequested) -> str:
    each = f", {e.group_size} rollouts each" if e.group_size > 1 else ""
    return f"evaluation over {len(e.seeds)} seeds{each}"


def eval_requested_data(e: RolloutRequested) -> Data:
    return {"instances": len(e.seeds) * e.group_size, "version": e.pinned_version}


def rollout_failed(e: RolloutFailed) -> str:
    return f"rollout {e.rollout_id} is dropped after {e.tries} tries: {e.problem.text()}"


def model_published_data(e: ModelPublished) -> Data:
    return {"model": e.model.id, "kind": e.kind, "step": e.step}
