"""The body of `POST /v1/fine_tuning/jobs`, as the openai SDK sends it, with one more grader of this project."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from synth.api.limits import MAX_MODEL_ID, MAX_URL

_Text = Annotated[str, Field(min_length=1, max_length=MAX_MODEL_ID)]
_Count = Annotated[int, Field(ge=1, le=1_000_000)]
_Factor = Annotated[float, Field(gt=0, le=1_000_000)]
# A union with "auto" in it would answer one wrong number with two errors.
_AutoIsNone = BeforeValidator(lambda value: None if value == "auto" else value)


def _or_auto(schema: dict[str, Any]) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": [schema, {"const": "auto"}, {"type": "null"}]})


_AutoCount = Annotated[_Count | None, _AutoIsNone, _or_auto({"type": "integer", "minimum": 1, "maximum": 1_000_000})]
_AutoFactor = Annotated[
    _Factor | None, _AutoIsNone, _or_auto({"type": "number", "exclusiveMinimum": 0, "maximum": 1_000_000})
]


class _Body(BaseModel):
    """A part of the request. Unknown fields are refused, as they would silently have no effect."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class SupervisedHyperparameters(_Body):
    """A missing or "auto" value is the platform's default; `lora_rank` is a field of this project."""

    n_epochs: _AutoCount = None
    batch_size: _AutoCount = None
    learning_rate_multiplier: _AutoFactor = Field(
        default=None,
        description="Of the default rate: supervised 1e-5 (adapters 2e-4), dpo and reinforcement 1e-6 (1e-5)",
    )
    lora_rank: Annotated[int, Field(ge=1, le=1024)] | None = Field(
        default=None, description="Train an adapter of this rank; without it every weight is trained"
    )


class DpoHyperparameters(SupervisedHyperparameters):
    """batch_size: pairs a step."""

    beta: _AutoFactor = Field(
        default=None, description="How strongly the policy is held near the model that it began as: 0.1"
    )


class ReinforcementHyperparameters(SupervisedHyperparameters):
    """n_epochs: passes over the rows or seeds. batch_size: of them a step. compute_multiplier: of 8 rollouts each."""

    compute_multiplier: _AutoFactor = None
    eval_interval: _AutoCount = Field(default=None, description="Steps between two evaluations")
    eval_samples: _AutoCount = Field(default=None, description="Seeds of each evaluation")
    reasoning_effort: Literal["default", "low", "medium", "high"] | None = Field(
        default=None,
        description="What of a call's tokens may be thoughts: low 20 %, medium 50 %, high 80 %. default: as the model "
        "and the task app have it",
    )


class TaskAppGrader(_Body):
    """The environment that plays and rewards the rollouts: your own, behind a URL, in place of OpenAI's graders."""

    type: Literal["task_app"]
    url: Annotated[str, Field(min_length=1, max_length=MAX_URL)]
    env_name: _Text
    name: _Text | None = None
    policy_name: _Text | None = None
    max_turns: _Count | None = None
    env_config: dict[str, Any] = {}
    policy_config: dict[str, Any] = Field(default={}, description="max_tokens, temperature, thinking_mode, …")


class Supervised(_Body):
    hyperparameters: SupervisedHyperparameters = SupervisedHyperparameters()


class Dpo(_Body):
    hyperparameters: DpoHyperparameters = DpoHyperparameters()


class Reinforcement(_Body):
    grader: dict[str, Any] = Field(
        description='Of OpenAI\'s types, for files of prompts; or {"type": "task_app", "url": …, "env_name": …}'
    )
    hyperparameters: ReinforcementHyperparameters = ReinforcementHyperparameters()
    response_format: dict[str, Any] | None = Field(
        default=None, description='{"type": "text"}: rollouts are sampled freely'
    )


class Method(_Body):
    """type: supervised, dpo or reinforcement, with the table of that name."""

    type: str
    supervised: Supervised | None = None
    reinforcement: Reinforcement | None = None
    dpo: Dpo | None = None


def _check_metadata(metadata: dict[str, str]) -> dict[str, str]:
    if len(metadata) > 16:
        raise ValueError(f"{len(metadata)} pairs; at most 16")
    for key, value in metadata.items():
        if len(key) > 64 or len(value) > 512:
            raise ValueError(f"{key[:64]!r} is too long: keys have at most 64 characters, values 512")
    return metadata


class FineTuningRequest(_Body):
    """A job. training_file: a file's id; for reinforcement by a task app its seeds, as `seeds:0-99`."""

    model: _Text
    training_file: Annotated[str, Field(min_length=1, max_length=8192)]
    validation_file: Annotated[str, Field(min_length=1, max_length=8192)] | None = None
    hyperparameters: SupervisedHyperparameters | None = Field(default=None, description="As method.supervised's")
    method: Method | None = None
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    suffix: Annotated[str, Field(min_length=1, max_length=64)] | None = Field(
        default=None, description="A label: it does not become part of the model's id"
    )
    metadata: Annotated[dict[str, str], AfterValidator(_check_metadata)] | None = None
    integrations: list[Any] | None = None
    allow_experimental: bool = Field(default=False, description="Take a model that is marked experimental")
