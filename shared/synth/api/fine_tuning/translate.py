"""From a fine-tuning request to a job in our own schema, which the validator reads like any other.

What OpenAI calls "auto" is the platform's default. A learning-rate multiplier is one of the platform's default rate.
Reinforcement learns from rows of a file, which a grader pays, or from seeds of a task app.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from pydantic import ValidationError

from synth.api.fine_tuning.request import (
    DpoHyperparameters,
    FineTuningRequest,
    Reinforcement,
    ReinforcementHyperparameters,
    SupervisedHyperparameters,
    TaskAppGrader,
)
from synth.errors import Problem, UserError
from synth.graders.schema import models_of, parse_grader
from synth.jobs.parse.validate import Kind
from synth.jobs.schema.rl import TrainingSection
from synth.jobs.schema.sections import MAX_TOKENS
from synth.methods.base import Mode
from synth.methods.dpo import DpoJob
from synth.methods.rl import RlJob
from synth.methods.seeds import Seeds, parse_seeds
from synth.methods.sft import SftJob
from synth.models import parse_finetuned

SEEDS = "seeds:"
EFFORT_FIELD = "method.reinforcement.hyperparameters.reasoning_effort"
TASK_APP = "task_app"
#: The values of a reinforcement job for fields that are "auto".
GROUP_SIZE: int = TrainingSection.model_fields["group_size"].default
_BATCH_SIZE: int = TrainingSection.model_fields["batch_size"].default
_MINIBATCHES: int = TrainingSection.model_fields["minibatches"].default
_EVALUATIONS = 5
#: The part of a call's tokens that may be thoughts, by the reasoning effort.
THOUGHTS = {"low": 0.2, "medium": 0.5, "high": 0.8}


class TranslatedJob(NamedTuple):
    """A job in our schema, and its kind."""

    kind: Kind
    config: dict[str, Any]


def is_graded(request: FineTuningRequest) -> bool:
    """Return whether a request's rollouts are rows of files, paid by a grader."""
    method = request.method.reinforcement if request.method else None
    return method is not None and method.grader.get("type") != TASK_APP


def translate_request(
    request: FineTuningRequest, rows: Mapping[str, int] = MappingProxyType({}), *, judge_provider: str = "synth"
) -> TranslatedJob:
    """Translate a request into a job of our schema. Raises UserError, whose places are fields of the request.

    rows: of the files of a graded job, by the fields that name them. judge_provider: the provider of the grader's
    models, except for those fine-tuned on this cluster.
    """
    if request.integrations:
        raise UserError(
            "integrations are not served here",
            expected="none",
            fix="leave them out, and read the metrics from the job's events",
            where="integrations",
        )
    method = request.method
    kind = method.type if method else "supervised"
    if kind not in ("supervised", "dpo", "reinforcement"):
        raise UserError(f"the method {kind!r} is not served here", expected=_METHODS, where="method.type")
    others = {name for name in ("supervised", "reinforcement", "dpo") if method and getattr(method, name) is not None}
    if unwanted := sorted(others - {kind}):
        raise UserError(f"settings of another method than {kind!r}", fix="remove them", where=f"method.{unwanted[0]}")
    if kind != "reinforcement":
        return TranslatedJob("sft", _sft(request, kind))
    reinforcement = method.reinforcement if method else None
    if reinforcement is None:
        raise UserError("the method's settings are missing", expected=_GRADER, where="method.reinforcement")
    return TranslatedJob("rl", _rl(request, reinforcement, rows, judge_provider))


_METHODS = '"supervised", "dpo" or "reinforcement"'
_GRADER = '{"grader": {"type": "task_app", "url": "https://…", "env_name": "…"}}'


def _sft(request: FineTuningRequest, kind: str) -> dict[str, Any]:
    """Return a job on a file: supervised, or of the kind DPO."""
    method = (request.method.dpo if kind == "dpo" else request.method.supervised) if request.method else None
    if request.hyperparameters is not None and (method is not None or kind == "dpo"):
        raise UserError(
            "hyperparameters are given twice" if method else "these belong to supervised jobs",
            fix=f"keep method.{kind}'s" if method else f"move them to method.{kind}.hyperparameters",
            where="hyperparameters",
        )
    hyper = method.hyperparameters if method else request.hyperparameters or SupervisedHyperparameters()
    dpo = kind == "dpo"
    if request.training_file.startswith(SEEDS):
        raise UserError(
            f"{request.training_file[:80]!r} are seeds, which reinforcement learns from",
            expected="the id of an uploaded file",
            where="training_file",
        )
    return {
        "algorithm": {
            "type": "offline",
            "method": "dpo" if dpo else "sft",
            "variety": "lora" if hyper.lora_rank else "fft",
        },
        "job": {"model": request.model, "data": request.training_file},
        **({"data": {"validation_path": request.validation_file}} if request.validation_file else {}),
        "training": {"mode": "lora" if hyper.lora_rank else "full_finetune"},
        **_lora(hyper),
        "hyperparameters": _without_none(
            n_epochs=hyper.n_epochs,
            global_batch=hyper.batch_size,
            learning_rate=_rate((DpoJob if dpo else SftJob).learning_rates, hyper),
            beta=hyper.beta if isinstance(hyper, DpoHyperparameters) else None,
            seed=request.seed,
        ),
        "tags": _without_none(suffix=request.suffix),
    }


def _rl(
    request: FineTuningRequest, method: Reinforcement, rows: Mapping[str, int], judge_provider: str
) -> dict[str, Any]:
    if request.hyperparameters is not None:
        raise UserError(
            "these are of supervised jobs",
            fix="move them to method.reinforcement.hyperparameters",
            where="hyperparameters",
        )
    if method.response_format not in (None, {"type": "text"}):
        raise UserError(
            "rollouts are sampled freely: a response_format would force tokens that the policy did not choose",
            expected='{"type": "text"}',
            fix="describe the format in the prompts, and pay for it with a grader of `sample.output_json`",
            where="method.reinforcement.response_format",
        )
    hyper = method.hyperparameters
    if is_graded(request):
        seeds = Seeds(start=0, count=rows["training_file"])
        thinking = _thinking(hyper, {})
        played = {
            "job": {"data": request.training_file},
            "grader": method.grader,
            **({"rollout": {"policy_config": thinking}} if thinking else {}),
            **_judges(method.grader, judge_provider),
        }
    else:
        app = _task_app(method.grader)
        played = _played_by(app, _thinking(hyper, app.policy_config))
        seeds = _seeds(request.training_file, "training_file")
    validation = request.validation_file if is_graded(request) else None
    batch = hyper.batch_size or _BATCH_SIZE
    group = max(2, round(GROUP_SIZE * (hyper.compute_multiplier or 1)))
    a_pass = -(-len(seeds) // batch)
    iterations = a_pass * (hyper.n_epochs or 1)
    source = "source" if parse_finetuned(request.model) else "base"
    return {
        "algorithm": {"type": "online", "method": "policy_gradient", "variety": "gspo"},
        "model": _without_none(
            **{source: request.model},
            trainer_mode="lora" if hyper.lora_rank else "full",
            label=request.suffix,
        ),
        **_lora(hyper),
        **played,
        "training": _without_none(
            num_epochs=hyper.n_epochs or 1,
            iterations_per_epoch=a_pass,
            batch_size=batch,
            group_size=group,
            minibatches=min(_MINIBATCHES, batch * group),
            learning_rate=_rate(RlJob.learning_rates, hyper),
            seed=request.seed,
        ),
        "data": _without_none(seeds=_as_data(seeds), validation_path=validation),
        **_evaluation(request, hyper, iterations, rows),
        "tags": _without_none(suffix=request.suffix),
    }


def _judges(grader: dict[str, Any], provider: str) -> dict[str, Any]:
    """Return the [judge] table with the models that a grader calls; {} for none."""
    models = models_of(parse_grader(grader, where="method.reinforcement.grader"))
    judges = [{"model": model, "provider": "synth" if parse_finetuned(model) else provider} for model in models]
    return {"judge": {"judges": judges}} if judges else {}


def _thinking(hyper: ReinforcementHyperparameters, policy: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys that a reasoning effort adds to the policy_config; {} for none. policy: its keys so far."""
    share = THOUGHTS.get(hyper.reasoning_effort or "")
    if share is None:
        return {}
    if written := sorted({"thinking_mode", "thinking_budget"} & policy.keys()):
        raise UserError(
            f"reasoning_effort beside the {written[0]} of the policy_config",
            expected="one of them",
            where=EFFORT_FIELD,
        )
    bounds = [policy.get(name) for name in ("max_tokens", "max_completion_tokens")]
    most = min((bound for bound in bounds if isinstance(bound, int)), default=MAX_TOKENS)
    return {"thinking_mode": "think", "thinking_budget": max(1, round(share * most))}


def _played_by(app: TaskAppGrader, thinking: dict[str, Any]) -> dict[str, Any]:
    return {
        "services": {"task_url": app.url},
        "rollout": _without_none(
            env_name=app.env_name,
            policy_name=app.policy_name,
            max_turns=app.max_turns,
            env_config=app.env_config,
            policy_config=app.policy_config | thinking,
        ),
    }


def _evaluation(
    request: FineTuningRequest, hyper: ReinforcementHyperparameters, iterations: int, rows: Mapping[str, int]
) -> dict[str, Any]:
    """Return the [evaluation] table: the rows of validation_file, else eval_samples held-out seeds; {} for neither."""
    graded = is_graded(request)
    if graded and request.validation_file is None and hyper.eval_samples is not None:
        raise UserError(
            "there is nothing to evaluate on",
            expected="a validation_file of prompts",
            where="method.reinforcement.hyperparameters.eval_samples",
        )
    if request.validation_file is None and hyper.eval_samples is None:
        if hyper.eval_interval is not None:
            raise UserError(
                "there is nothing to evaluate on",
                expected="a validation_file of prompts" if graded else "eval_samples, or seeds as the validation_file",
                where="method.reinforcement.hyperparameters.eval_interval",
            )
        return {}
    every = hyper.eval_interval or max(1, iterations // _EVALUATIONS)
    seeds = None
    if graded:
        seeds = _as_data(Seeds(start=0, count=rows["validation_file"]))
    elif request.validation_file:
        seeds = _as_data(_seeds(request.validation_file, "validation_file"))
    return {"evaluation": _without_none(every_n_iters=every, instances=hyper.eval_samples, seeds=seeds)}


def _task_app(grader: dict[str, Any]) -> TaskAppGrader:
    place = "method.reinforcement.grader"
    try:
        return TaskAppGrader.model_validate(grader)
    except ValidationError as error:
        raise UserError(
            [
                Problem(what=e["msg"], expected=_GRADER, where=".".join([place, *map(str, e["loc"])]))
                for e in error.errors()
            ]
        ) from error


def _seeds(text: str, place: str) -> Seeds:
    """Parse `seeds:0-99` or `seeds:3,14,15`. Raises UserError."""
    named = text.removeprefix(SEEDS)
    try:
        if named == text:
            raise ValueError("seeds of the task app, such as seeds:0-99")
        parts = named.split(",")
        listed = all(part.strip().isdecimal() for part in parts)
        return parse_seeds([int(part) for part in parts] if listed else named)
    except ValueError as error:
        raise UserError(
            f"{text[:80]!r} is not what reinforcement learns from",
            expected=f"{SEEDS}0-99 or {SEEDS}3,14,15 ({error})",
            fix="the task app makes an episode of each seed; a file's rows are for the graders of docs/graders.md",
            where=place,
        ) from error


def _as_data(seeds: Seeds) -> Any:
    return seeds.listed or {"start": seeds.start, "count": seeds.count}


def _lora(hyper: SupervisedHyperparameters) -> dict[str, Any]:
    return {"lora": {"r": hyper.lora_rank, "alpha": 2 * hyper.lora_rank}} if hyper.lora_rank else {}


def _rate(defaults: Mapping[Mode, float], hyper: SupervisedHyperparameters) -> float | None:
    if hyper.learning_rate_multiplier is None:
        return None
    return defaults["lora" if hyper.lora_rank else "full"] * hyper.learning_rate_multiplier


def _without_none(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
