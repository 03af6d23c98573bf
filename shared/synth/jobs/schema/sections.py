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
from pydantic import BaseModel, ConfigDict, Field, PlainValidator, model_validator
from pydantic.fields import FieldInfo

from synth.methods.losses import BuiltinLoss, list_losses
from synth.methods.seeds import Seeds, parse_seeds

Free = dict[str, Any]
#: Beyond it a number counts nothing that there is, and some library takes it for another.
LARGEST = 2**31 - 1
#: Likewise of floats: a time in seconds is thirty years then.
LARGEST_FLOAT = 1e9
#: Elements of a list, and characters of a name, an address or a path.
MAX_ELEMENTS = 1000
MAX_NAME = 4096
Positive = Annotated[int, Field(ge=1, le=LARGEST)]
NonNegative = Annotated[int, Field(ge=0, le=LARGEST)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Fraction = Annotated[float, Field(ge=0, le=1)]
PositiveFloat = Annotated[float, Field(gt=0, le=LARGEST_FLOAT)]
#: AdamW moves each weight by about the rate: above 1 nothing is learned.
LearningRate = Annotated[float, Field(gt=0, le=1)]
NonNegativeFloat = Annotated[float, Field(ge=0, le=LARGEST_FLOAT)]
Betas = Annotated[list[Annotated[float, Field(ge=0, lt=1)]], Field(min_length=2, max_length=2)]
Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME)]
Names = Annotated[list[Name], Field(min_length=1, max_length=MAX_ELEMENTS)]
Ops = Names
# The schema's own idea of seeds is a function: a union of three shapes would give three errors for one mistake.
SeedSet = Annotated[Seeds, PlainValidator(parse_seeds)]
Scheduler = Literal["constant", "linear", "cosine"]

#: Defaults that fields of several tables share.
OPS = ["agent", "env"]
MAX_TOKENS = 512
MAX_TAGS_BYTES = 16 << 10


class Section(BaseModel):
    """One TOML table: exact types, no unknown keys, nothing that is not finite."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        protected_namespaces=(),
    )


@functools.cache
def keys_of(table: type[BaseModel]) -> dict[str, FieldInfo]:
    """Return a table's keys as they are written in a file."""
    return {info.alias or name: info for name, info in table.model_fields.items()}


#: The keys of fields that have another name in a job.
KEYS = {
    "lr": "learning_rate",
    "schedule": "lr_scheduler",
    "clip_norm": "grad_clip",
    "checkpoints_kept": "keep_checkpoints",
}


def copied_fields(settings: type[msgspec.Struct], table: type[BaseModel]) -> dict[str, str]:
    """Return the fields of a job's settings whose key, the value of each, stands in a table of the file."""
    named = ((field, KEYS.get(field, field)) for field in settings.__struct_fields__)
    return {field: key for field, key in named if key in table.model_fields}


def copied_keys(settings: msgspec.Struct, table: type[BaseModel]) -> dict[str, Any]:
    """Return the keys of a table that have the values of a job's settings, as JSON data."""
    values = msgspec.json.decode(msgspec.json.encode(settings))
    return {key: values[field] for field, key in copied_fields(type(settings), table).items()}


def default_of(table: type[BaseModel], name: str) -> Any:
    """Return the default of a table's field."""
    return table.model_fields[name].get_default(call_default_factory=True)


class AlgorithmSection(Section):
    """`[algorithm]`: which family of training; the kind of job is read from it first."""

    type: Literal["online", "offline"]
    """"online" for RL, "offline" for SFT and DPO"""
    method: Literal["policy_gradient", "supervised_finetune", "sft", "dpo"]
    """"policy_gradient" for RL, "supervised_finetune" or "sft" for SFT, "dpo" for DPO on preference pairs"""
    variety: Literal[BuiltinLoss, "fft", "lora", "qlora"] = Field(
        description=f'the loss for RL: {list_losses()}; "fft", "lora" or "qlora" for SFT and DPO'
    )


class TopologySection(Section):
    """`[topology]`, or `[compute.topology]`: how the GPUs of a node are shared out."""

    type: Literal["single_node_split"] = "single_node_split"
    """the only kind of split there is"""
    gpus_for_vllm: NonNegative | None = None
    """GPUs that serve rollouts: as many as the cluster's operator gave to inference"""
    gpus_for_training: NonNegative | None = None
    """GPUs that train; default: all of the trainer's; the job ends if the trainer has fewer"""
    gpus_for_ref: NonNegative | None = None
    """GPUs that hold the reference model: it lives in the trainer"""
    tensor_parallel: Positive | None = None
    """GPUs that one copy of the served model is spread over"""
    reference_placement: Literal["none", "shared", "dedicated"] | None = None
    """the placement of the reference model, as in `[reference]`"""


class ComputeSection(Section):
    """`[compute]`: the machines."""

    gpu_type: Name | None = None
    """such as "H100\""""
    gpu_count: Positive | None = None
    """GPUs a node"""
    nodes: Positive | None = 1
    """machines"""
    topology: TopologySection | None = None
    """the same fields as `[topology]`"""


class LoraSection(Section):
    """`[lora]`, or `[training.lora]`: the adapter."""

    r: Positive = 16
    """rank; 16 is enough for RL and for small SFT sets"""
    alpha: Positive = 32
    """scale: the update is multiplied by alpha / r"""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.05
    """on the adapter's input, SFT only: RL and DPO force 0, or the policy would not begin as its own reference"""
    target_modules: Names | None = None
    """modules to adapt; default: the choice for the model's family ("all-linear" for text)"""


class PolicySection(Section):
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

    temperature: NonNegativeFloat | None = 1.0
    """of the sampling; at 1, the sampled distribution is the trained one"""
    top_p: Annotated[float, Field(gt=0, le=1)] | None = 1.0
    """nucleus sampling; clamped to off (1) in RL: a truncated distribution is not the policy's"""
    top_k: int | None = 0
    """0 or -1 is off; clamped to off in RL, for the same reason"""
    max_tokens: Positive | None = MAX_TOKENS
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


class OptimizationSection(Section):
    """The keys of the optimization that every training job has."""

    learning_rate: LearningRate | None = None
    """AdamW's; SFT: 1e-5 for full, 2e-4 for lora and qlora; RL and DPO: 1e-6 for full, 1e-5 for lora and qlora"""
    lr_scheduler: Scheduler = "constant"
    """after the warm-up; constant in RL, as the policy's data change under it anyhow"""
    min_lr_ratio: Fraction = 0.0
    """the end of linear and cosine, as a share of learning_rate"""
    warmup_ratio: Fraction = 0.05
    """share of all optimizer steps over which the rate rises from 0"""
    betas: Betas = Field(default=[0.9, 0.95])
    """AdamW's"""
    weight_decay: NonNegativeFloat = 0.0
    """AdamW's; 0 in RL, which moves weights too little to need it"""
    grad_clip: PositiveFloat = 1.0
    """largest norm of the gradient"""
    packing: bool = True
    """put sequences end to end rather than pad them"""
    micro_batch_tokens: Positive = 8192
    """tokens in one forward and backward pass: memory, not mathematics"""
    optimizer: Literal["adamw", "adamw_8bit"] = "adamw"
    """adamw has two moments of a trained weight in float32, 8 bytes; adamw_8bit in 8 bits by blocks, about 2:
    docs/gpu.md"""
    optimizer_offload: bool = False
    """keep the moments in main memory, and bring them to the GPU for each update, some at a time"""
    checkpoint_every: Positive | None = None
    """steps (iterations in RL) between two resume points; default: 100 (1 in RL), more for a large model"""
    keep_checkpoints: Positive = 3
    """how many checkpoints stay to be served and evaluated: the last ones whose step was evaluated; without an
    evaluation, the last of all"""
    seed: Seed = 0
    """of everything random: order of rows or seeds, initial adapter, dropout"""
