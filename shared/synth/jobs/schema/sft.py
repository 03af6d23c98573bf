"""The TOML of an SFT or a DPO job. Names are the published client's; keys that it does not have are named here."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from synth.jobs.schema.sections import (
    AlgorithmSection,
    ComputeSection,
    Free,
    LoraSection,
    ModelImagesSection,
    OptimizationSection,
    PolicySection,
    Section,
    TagsSection,
)
from synth.methods.dpo import DpoKeys
from synth.methods.optimization import FileKeys
from synth.tables.keys import MAX_ELEMENTS, Name, Names, NonNegative, Positive, PositiveFloat


class JobSection(Section, frozen=True):
    """`[job]`: the model and its dataset."""

    model: Name | None = None
    """a base or fine-tuned model's id; `--model` replaces it"""
    data: Name | None = None
    """the dataset, rows with `messages` or, for DPO, preference pairs: a path, or the id of an uploaded file"""
    data_path: Name | None = None
    """the same as `data`"""
    examples: Positive | None = None
    """only the first rows of the dataset, for a trial; `--examples` replaces it"""
    poll_seconds: PositiveFloat | None = None
    """seconds between two checks of the job"""
    modalities: Annotated[list[Literal["text", "image"]], Field(max_length=MAX_ELEMENTS)] | None = None
    """the kinds of content in the rows: images need a vision model"""
    description: str | None = None
    """a note for readers"""


class SftDataSection(Section, frozen=True):
    """`[data]`: further settings of the data."""

    topology: Free | None = None
    """how rows are shared out"""
    validation_path: Name | None = None
    """rows that are only measured, a JSONL like the dataset"""


class BestModelSection(Section, frozen=True):
    """When the validation loss is measured, and which checkpoint becomes the result."""

    evaluation_strategy: Literal["no", "steps"] = "steps"
    """"steps", or "no" for never"""
    eval_steps: NonNegative = 100
    """optimizer steps between two validations; 0 means the default"""
    save_best_model_at_end: bool = True
    """whether the result is the best checkpoint rather than the last"""
    load_best_model_at_end: bool | None = None
    """the same as `save_best_model_at_end`"""
    metric_for_best_model: Literal["val.loss"] = "val.loss"
    """what best means"""
    greater_is_better: Literal[False] = False
    """a loss is better when smaller"""


class ValidationSection(BestModelSection, frozen=True):
    """`[training.validation]`: the loss on rows that are not trained."""

    enabled: bool = True
    """whether the validation file is used"""


class SftTrainingSection(Section, frozen=True):
    """`[training]`: full fine-tune or adapter, and the validation."""

    mode: Literal["lora", "full_finetune", "sft_offline"] | None = None
    """full_finetune: every weight; lora: an adapter; sft_offline leaves it to the other keys"""
    use_qlora: bool | None = None
    """an adapter on a base in 4 bits (NF4), which is also the base that is served with it"""
    validation: ValidationSection | None = None
    """the loss on rows that are not trained"""
    lora: LoraSection | None = None
    """the same as `[lora]`"""


class ParallelismSection(BestModelSection, frozen=True):
    """`[hyperparameters.parallelism]`: how the model is spread; the keys of `[training.validation]` may stand here."""

    use_deepspeed: bool | None = None
    """shard over the GPUs as DeepSpeed's ZeRO does, here by FSDP"""
    deepspeed_stage: NonNegative | None = None
    """0: every GPU holds all; 1 and 2: its part of masters, gradients and optimizer state; 3: of the weights too, which
    are gathered block by block. Default: 2 if `use_deepspeed` is true, else 3"""
    fsdp: bool | None = None
    """true: as stage 3; false: as stage 0"""
    bf16: bool | None = None
    """the forward in bfloat16 on GPUs (masters, log-probabilities and loss stay float32), or not; on CPU the trainer's
    own setting holds"""
    fp16: bool | None = None
    """train in float16"""
    activation_checkpointing: bool = False
    """compute activations twice rather than keep them"""
    tensor_parallel_size: Positive = 1
    """GPUs that each layer is spread over"""
    pipeline_parallel_size: Positive = 1
    """GPUs that the layers are dealt out to"""


class HyperparametersSection(FileKeys, DpoKeys, OptimizationSection, BestModelSection, frozen=True):
    """`[hyperparameters]`: the optimization. One step = one optimizer step. `[training.validation]` comes before it."""

    n_epochs: Positive = 1
    """passes over the dataset"""
    total_steps: Positive | None = None
    """optimizer steps; if it is set, n_epochs has no effect"""
    train_steps: Positive | None = None
    """the same as `total_steps`"""
    steps: Positive | None = None
    """the same as `total_steps`"""
    batch_size: Positive | None = None
    """rows a forward pass of each GPU of [compute]; see global_batch"""
    global_batch: Positive = 32
    """rows (pairs for DPO) in an optimizer step; if it is not set, per_device_batch x gradient_accumulation_steps x the
    GPUs of [compute] (gpu_count x nodes) decide"""
    per_device_batch: Positive | None = None
    """the same as batch_size"""
    gradient_accumulation_steps: Positive | None = None
    """forward passes a step"""
    loss_type: Literal["sigmoid"] = "sigmoid"
    """of DPO: the paper's loss, the only one there is"""
    train_kind: Literal["peft", "fft"] | None = None
    """peft: an adapter; fft: every weight"""
    lora_rank: Positive | None = None
    """the same as `[lora] r`"""
    lora_alpha: Positive | None = None
    """the same as `[lora] alpha`"""
    lora_dropout: Annotated[float, Field(ge=0, lt=1)] | None = None
    """the same as `[lora] dropout`"""
    lora_target_modules: Names | None = None
    """the same as `[lora] target_modules`"""
    world_size: Positive | None = None
    """GPUs that train; default: all of the trainer's; the job ends if the trainer has fewer; no effect on CPU"""
    parallelism: ParallelismSection | None = None
    """how the model is spread over GPUs"""


class ModelConfigSection(ModelImagesSection, frozen=True):
    """`[model_config]`: the keys of `[model]`, and other keys about the model."""

    max_model_len: Positive | None = None
    """tokens of prompt and reply together, at most"""


class SftConfig(Section, frozen=True):
    """An SFT or a DPO job."""

    type: Literal["sft"] | None = None
    """the kind of job, in older files"""
    algorithm: AlgorithmSection | None = None
    job: JobSection = JobSection()
    data: SftDataSection = SftDataSection()
    compute: ComputeSection | None = None
    training: SftTrainingSection = SftTrainingSection()
    hyperparameters: HyperparametersSection = HyperparametersSection()
    lora: LoraSection | None = None
    # pydantic keeps the name `model_config` for itself.
    described_model: ModelConfigSection | None = Field(default=None, alias="model_config")
    model: ModelImagesSection | None = None
    metadata: Free | None = None
    """the client's own notes about the job"""
    policy: PolicySection | None = None
    tags: TagsSection = TagsSection()
