"""How a job is sharded over GPUs, from the keys of DeepSpeed and FSDP and from the split of a node's GPUs."""

from __future__ import annotations

from synth.jobs.parse.toml import Path
from synth.jobs.resolve.context import ResolveContext
from synth.jobs.schema.rl import RlConfig
from synth.jobs.schema.sections import TopologySection
from synth.jobs.schema.sft import HyperparametersSection, ParallelismSection
from synth.methods.base import Parallelism, Sharding
from synth.methods.rl import GpuTopology

_TABLE: Path = ("hyperparameters", "parallelism")
#: How each of ZeRO's stages is spread. The first keeps whole gradients, which FSDP does not need.
_STAGES: dict[int, Sharding] = {0: "replicated", 1: "gradients", 2: "gradients", 3: "parameters"}
#: Accelerate's default, which files without the key usually rely on.
_STAGE = 2
_ON_GPUS = "is a number of GPUs: where training computes on CPU it has no effect"


def sft_parallelism(hyper: HyperparametersSection, context: ResolveContext) -> Parallelism:
    """Return the parallelism that `[hyperparameters] world_size` and `[hyperparameters.parallelism]` set."""
    section = context.table(hyper.parallelism, ParallelismSection, _TABLE)
    for key, does in (("tensor_parallel_size", "divides layers"), ("pipeline_parallel_size", "deals layers out")):
        size = getattr(section, key)
        if size > 1:
            context.problem(
                (*_TABLE, key),
                f"{key} = {size} {does} among GPUs, which this trainer does not do",
                expected="1",
                fix=f"remove it: fsdp = true spreads a model over world_size GPUs; try world_size = {size}",
            )
    if (hyper.world_size or 1) > 1:
        context.warn(("hyperparameters", "world_size"), _ON_GPUS)
    dtype = None if section.bf16 is None else "bf16" if section.bf16 else "fp32"
    origin = "default" if section.bf16 is None else context.document.where((*_TABLE, "bf16"))
    return Parallelism(
        world_size=context.take("parallelism.world_size", hyper, "world_size"),
        sharding=_sharding(section, context),
        dtype=context.record("parallelism.dtype", dtype, origin),
    )


def _sharding(section: ParallelismSection, context: ResolveContext) -> Sharding:
    stage, deepspeed = section.deepspeed_stage, section.use_deepspeed
    if stage is not None and stage not in _STAGES:
        context.problem((*_TABLE, "deepspeed_stage"), f"there is no stage {stage}", expected="0, 1, 2 or 3")
    if stage is not None and deepspeed is False:
        context.warn((*_TABLE, "deepspeed_stage"), "has no effect: use_deepspeed is false")
    requested: dict[str, Sharding] = {}
    if deepspeed or (deepspeed is None and stage is not None):
        requested["deepspeed_stage" if stage is not None else "use_deepspeed"] = _STAGES.get(
            _STAGE if stage is None else stage, "parameters"
        )
    if section.fsdp:
        requested["fsdp"] = "parameters"
    elif section.fsdp is False and not requested:
        requested["fsdp"] = "replicated"
    if len(set(requested.values())) > 1:
        context.problem(
            (*_TABLE, "fsdp"),
            "fsdp = true spreads weights, gradients and optimizer over the GPUs; DeepSpeed's stage here does not",
            expected="one of the two",
            fix="remove fsdp, or set deepspeed_stage = 3, which does the same",
        )
    for key, sharding in requested.items():
        return context.record("parallelism.sharding", sharding, context.document.where((*_TABLE, key)))
    return context.record("parallelism.sharding", "parameters", "default")


def rl_parallelism(topology: GpuTopology, context: ResolveContext) -> Parallelism:
    """Return the parallelism of the policy, on the GPUs that the split gives to training."""
    origin = context.origins["topology.gpus_for_training"]
    return Parallelism(
        world_size=context.record("parallelism.world_size", topology.gpus_for_training, origin),
        sharding=context.record("parallelism.sharding", "parameters", "default"),
        dtype=context.record("parallelism.dtype", None, "default"),
    )


def rl_topology(config: RlConfig, context: ResolveContext) -> GpuTopology:
    """Return the split of a node's GPUs, by `[topology]` or `[compute.topology]`; report one that cannot run."""
    compute = config.compute
    available = (compute.gpu_count or 0) * compute.nodes if compute else 0
    sections = [section for section in (config.topology, compute.topology if compute else None) if section]
    for section in sections:
        path = context.place(section)
        for key, use in (("gpus_for_vllm", "serve rollouts"), ("gpus_for_training", "train")):
            if getattr(section, key) == 0:
                context.problem((*path, key), f"{key} = 0 leaves nothing to {use}", expected="at least 1")
        shares = (section.gpus_for_vllm, section.gpus_for_training, section.gpus_for_ref)
        used = sum(n or 0 for n in shares)
        if available and used > available:
            context.problem(path, f"{used} GPUs are shared out", expected=f"at most the {available} of [compute]")
        if section.gpus_for_training:
            context.warn((*path, "gpus_for_training"), _ON_GPUS)

    def share(key: str) -> int | None:
        named: list[tuple[TopologySection | None, str]] = [(section, key) for section in sections]
        return context.first(f"topology.{key}", named)

    return GpuTopology(
        gpus_for_vllm=share("gpus_for_vllm"),
        gpus_for_training=share("gpus_for_training"),
        gpus_for_ref=share("gpus_for_ref"),
    )
