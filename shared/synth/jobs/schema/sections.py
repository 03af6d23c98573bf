"""The base of all tables of job files, and the tables that several kinds of job share.

`synthctl` prints the text under a field beside an error, so the text states the unit and the reason for the default. A
default that is a constant stands in its field, unless several keys share it. The resolver computes a default that
follows from other keys, and the field's text explains how. `| None` beside a default: in a JSON payload such a key may
be null, which is the same as leaving it out.
"""

from __future__ import annotations

import functools
from typing import Annotated, Any, Literal

import msgspec
from pydantic import BaseModel, ConfigDict, Field, PlainValidator, WithJsonSchema, model_validator
from pydantic.fields import FieldInfo

from synth.methods.base import LoraKeys
from synth.methods.losses import BuiltinLoss, list_losses
from synth.methods.rl import TopologyKeys
from synth.methods.seeds import Seeds, parse_seeds
from synth.tables.docstrings import attribute_docstrings
from synth.tables.keys import (
    Name,
    Names,
    NonNegativeFloat,
    Positive,
    PositiveFloat,
)

Free = dict[str, Any]
#: AdamW moves each weight by about the rate: above 1 nothing is learned.
LearningRate = Annotated[float, Field(gt=0, le=1)]
Ops = Names
# The schema's own idea of seeds is a function: a union of three shapes would give three errors for one mistake.
SeedSet = Annotated[
    Seeds,
    PlainValidator(parse_seeds),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1, "uniqueItems": True},
                {"type": "string", "pattern": r"^\s*\d+\s*-\s*\d+\s*$"},
                {
                    "type": "object",
                    "properties": {
                        "start": {"type": "integer", "minimum": 0},
                        "count": {"type": "integer", "minimum": 1},
                    },
                    "required": ["count"],
                    "additionalProperties": False,
                },
            ]
        }
    ),
]

#: Defaults that fields of several tables share.
OPS = ["agent", "env"]
MAX_TOKENS = 512
MAX_TAGS_BYTES = 16 << 10


class Section(BaseModel, frozen=True):
    """One TOML table: exact types, no unknown keys, nothing that is not finite."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        protected_namespaces=(),
    )


@functools.cache
def keys_of(table: type[BaseModel]) -> dict[str, FieldInfo]:
    """Return a table's keys as they are written in a file."""
    return {info.alias or name: info for name, info in table.model_fields.items()}


def copied_fields(settings: type[msgspec.Struct], table: type[BaseModel]) -> list[str]:
    """Return the fields of a job's settings whose value stands in a table of the file."""
    return [field for field in settings.__struct_fields__ if field in table.model_fields]


def description_of(table: type[BaseModel], key: str) -> str | None:
    """Return the text of a table's key."""
    name = next(name for name, info in table.model_fields.items() if (info.alias or name) == key)
    return _descriptions(table).get(name)


@functools.cache
def _descriptions(table: type[BaseModel]) -> dict[str, str]:
    """Return the text below each field of a table, by field."""
    texts: dict[str, str] = {}
    for base in reversed(table.__mro__):
        if base.__module__.startswith("synth.") and BaseModel not in base.__mro__:
            texts |= attribute_docstrings(base)
    own = {name: info.description for name, info in table.model_fields.items() if info.description is not None}
    return texts | own


def default_of(table: type[BaseModel], name: str) -> Any:
    """Return the default of a table's field."""
    return table.model_fields[name].get_default(call_default_factory=True)


class AlgorithmSection(Section, frozen=True):
    """`[algorithm]`: which family of training; the kind of job is read from it first."""

    type: Literal["online", "offline"]
    """"online" for RL, "offline" for SFT and DPO"""
    method: Literal["policy_gradient", "supervised_finetune", "sft", "dpo"]
    """"policy_gradient" for RL, "supervised_finetune" or "sft" for SFT, "dpo" for DPO on preference pairs"""
    variety: Literal[BuiltinLoss, "fft", "lora", "qlora"] = Field(
        description=f'the loss for RL: {list_losses()}; "fft", "lora" or "qlora" for SFT and DPO'
    )


class TopologySection(TopologyKeys, Section, frozen=True):
    """`[topology]`, or `[compute.topology]`: how the GPUs of a node are shared out."""

    type: Literal["single_node_split"] = "single_node_split"
    """the only kind of split there is"""
    tensor_parallel: Positive | None = None
    """GPUs that one copy of the served model is spread over"""
    reference_placement: Literal["none", "shared", "dedicated"] | None = None
    """the placement of the reference model, as in `[reference]`"""


class ComputeSection(Section, frozen=True):
    """`[compute]`: the machines."""

    gpu_type: Name | None = None
    """such as "H100\""""
    gpu_count: Positive | None = None
    """GPUs a node"""
    nodes: Positive = 1
    """machines"""
    topology: TopologySection | None = None
    """the same fields as `[topology]`"""


class LoraSection(LoraKeys, Section, frozen=True):
    """`[lora]`, or `[training.lora]`: the adapter."""

    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.05
    """on the adapter's input, SFT only: RL and DPO force 0, or the policy would not begin as its own reference"""
    target_modules: Names | None = None
    """modules to adapt; default: the choice for the model's family ("all-linear" for text)"""


class PolicySection(Section, frozen=True):
    """`[policy]`: another way to name the model and its sampling, for RL."""

    model_name: Name | None = None
    """a base model's id: exactly one of this and `source`"""
    model: Name | None = None
    """the same as `model_name`, in older files"""
    source: Name | None = None
    """a fine-tuned model's id"""
    trainer_mode: Literal["lora", "full", "qlora"] | None = None
    """what is trained"""
    label: str | None = None
    """a name to find the job by"""
    max_tokens: Positive = MAX_TOKENS
    """sampled tokens a call, at most"""
    temperature: NonNegativeFloat = 0.7
    """of the sampling"""
    top_p: Annotated[float, Field(gt=0, le=1)] = 0.95
    """nucleus sampling; off while training"""
    top_k: int | None = None
    """0 or -1 is off; off while training"""
    repetition_penalty: PositiveFloat = 1.0
    """1, which is off: another value would sample from another distribution than the policy's own"""
    stop_sequences: Annotated[list[Name], Field(max_length=4)] | None = None
    """texts that end a reply: given to the task app as `policy.config.stop`, to be sent with its calls"""
    inference_url: str | None = None
    """the platform gives each rollout an address of its own"""


class PolicyConfigSection(BaseModel):
    """`[….policy_config]`: sampling, and any other keys of the task app's policy, which are passed on unchanged."""

    model_config = ConfigDict(
        extra="allow",
        strict=True,
        frozen=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )

    temperature: NonNegativeFloat = 1.0
    """of the sampling; at 1, the sampled distribution is the trained one"""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """nucleus sampling; clamped to off (1) in RL: a truncated distribution is not the policy's"""
    top_k: int = 0
    """0 or -1 is off; clamped to off in RL, for the same reason"""
    max_tokens: Positive = MAX_TOKENS
    """sampled tokens a call, at most"""
    max_completion_tokens: Positive | None = None
    """the same, under its newer name"""
    thinking_mode: Literal["think", "no_think"] | None = None
    """whether a thinking model thinks; a Thinking variant, which always does, takes no `no_think`, and an Instruct
    model, which never does, no `think`"""
    thinking_budget: Positive | None = None
    """tokens of thought, at most, after which the model has to answer; the app may ask for fewer"""
    use_vision: bool | None = None
    """whether observations carry an image"""
    image_only_mode: bool | None = None
    """whether observations carry no text"""
    max_llm_calls: Positive | None = None
    """calls in a rollout, if `max_turns` is not set"""
    max_turns: Positive | None = None
    """the same, in older files"""
    model: Name | None = None
    """the job's own model is served"""
    provider: Name | None = None
    """of another service's models"""
    inference_url: str | None = None
    """the platform gives each rollout an address of its own"""


class TagsSection(BaseModel):
    """`[tags]`: anything, to find the job by. They stand in every list of jobs, so they have a size: 16 KiB as JSON."""

    model_config = ConfigDict(extra="allow", frozen=True)

    @model_validator(mode="after")
    def _check_size(self) -> TagsSection:
        size = len(msgspec.json.encode(self.model_extra))
        if size > MAX_TAGS_BYTES:
            raise ValueError(f"the tags are {size:,} bytes, and may be {MAX_TAGS_BYTES:,}")
        return self


class SightSection(Section, frozen=True):
    """What a task app shows to a vision model."""

    use_vision: bool | None = None
    """whether observations carry an image: given to the task app as `policy.config.use_vision`; default: true for a
    vision model"""
    image_only_mode: bool | None = None
    """whether observations carry no text: given to the task app as `policy.config.image_only_mode`"""


class RolloutSourcesSection(SightSection, frozen=True):
    """What a rollout is shown, and who scores it."""

    max_images_per_step: Positive | None = None
    """images an observation: given to the task app as `policy.config.max_images_per_step`"""
    task_app_origin_rewards_only: bool | None = None
    """whether judges are left out: the scores of events and outcome are `metrics.events_score` and `outcome_score` of
    the task app's answer, and its `mean_return` is the environment's"""
    rubric_rewards_only: bool | None = None
    """whether the environment's own reward is left out: `[rubric.weights] env` is 0"""


class ModelImagesSection(Section, frozen=True):
    """`[model]`: the images of a vision model."""

    supports_vision: bool | None = None
    """whether prompts or rows may carry images; the value has to be true of the model"""
    max_images_per_message: Positive | None = None
    """images that a message keeps, the first ones; default: from the registry"""
    vision_processor_id: str | None = None
    """the model whose image processor prepares them; default: from the registry"""
    freeze_vision_tower: bool | None = None
    """whether full training leaves the vision tower unchanged and trains only its projector; default: true"""


class OptimizationSection(Section, frozen=True):
    """The keys of the optimization that have another form in a job."""

    learning_rate: LearningRate | None = None
    """AdamW's; SFT: 1e-5 for full, 2e-4 for lora and qlora; RL and DPO: 1e-6 for full, 1e-5 for lora and qlora"""
    packing: bool = True
    """put sequences end to end rather than pad them"""
