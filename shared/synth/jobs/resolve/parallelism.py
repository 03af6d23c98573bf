"""How a job is spread over GPUs: what DeepSpeed's and FSDP's keys, and a split of a node's GPUs, come to here."""

from __future__ import annotations

from synth.jobs.parse.toml import Path
from synth.jobs.resolve.context import Resolving
from synth.jobs.resolved import Parallelism, Sharding, Topology
from synth.jobs.schema.rl import RlConfig
from synth.jobs.schema.sections import Topology as TopologySection
from synth.jobs.schema.sft import Hyperparameters
from synth.jobs.schema.sft import Parallelism as ParallelismSection

_TABLE: Path = ("hyperparameters", "parallelism")
#: What ZeRO's stages spread. The first keeps whole gradients, which FSDP has no need of.
_STAGES: dict[int, Sharding] = {0: "replicated", 1: "gradients", 2: "gradients", 3: "parameters"}
#: Accelerate's, and with it that of most files that leave it out.
_STAGE = 2
_ON_GPUS = "is a number of GPUs: where training computes on CPU it has no effect"


def sft_parallelism(hyper: Hyperparameters, state: Resolving) -> Parallelism:
    """What `[hyperparameters] world_size` and `[hyperparameters.parallelism]` come to."""
    section = hyper.parallelism or ParallelismSection()
    for key, does in (("tensor_parallel_size", "divides layers"), ("pipeline_parallel_size", "deals layers out")):
        size = getattr(section, key)
        if size is not None and size > 1:
            state.problem(
                (*_TABLE, key),
                f"{key} = {size} {does} among GPUs, which this trainer does not do",
                expected="1",
                fix=f"remove it: fsdp = true spreads a model over world_size GPUs; try world_size = {size}",
            )
    if (hyper.world_size or 1) > 1:
        state.warn(("hyperparameters", "world_size"), _ON_GPUS)
    dtype = None if section.bf16 is None else "bf16" if section.bf16 else "fp32"
    origin = "default" if section.bf16 is None else state.document.where((*_TABLE, "bf16"))
    return Parallelism(
        world_size=state.take("parallelism.world_size", hyper, "world_size"),
        sharding=_sharding(section, state),
        dtype=state.note("parallelism.dtype", dtype, origin),
    )


def _sharding(section: ParallelismSection, state: Resolving) -> Sharding:
    stage, deepspeed = section.deepspeed_stage, section.use_deepspeed
    if stage is not None and stage not in _STAGES:
        state.problem((*_TABLE, "deepspeed_stage"), f"there is no stage {stage}", expected="0, 1, 2 or 3")
    if stage is not None and deepspeed is False:
        state.warn((*_TABLE, "deepspeed_stage"), "has no effect: use_deepspeed is false")
    asked: dict[str, Sharding] = {}
    if deepspeed or (deepspeed is None and stage is not None):
        asked["deepspeed_stage" if stage is not None else "use_deepspeed"] = _STAGES.get(
            _STAGE if stage is None else stage, "parameters"
        )
    if section.fsdp:
        asked["fsdp"] = "parameters"
    elif section.fsdp is False and not asked:
        asked["fsdp"] = "replicated"
    if len(set(asked.values())) > 1:
        state.problem(
            (*_TABLE, "fsdp"),
            "fsdp = true spreads weights, gradients and optimizer over the GPUs; DeepSpeed's stage here does not",
            expected="one of the two",
            fix="remove fsdp, or set deepspeed_stage = 3, which does the same",
        )
    for key, sharding in asked.items():
        return state.note("parallelism.sharding", sharding, state.document.where((*_TABLE, key)))
    return state.note("parallelism.sharding", "parameters", "default")


def rl_parallelism(topology: Topology, state: Resolving) -> Parallelism:
    """The policy is trained on the GPUs that the split gives to training."""
    origin = state.origins["topology.gpus_for_training"]
    return Parallelism(
        world_size=state.note("parallelism.world_size", topology.gpus_for_training, origin),
        sharding=state.note("parallelism.sharding", "parameters", "default"),
        dtype=state.note("parallelism.dtype", None, "default"),
    )


def rl_topology(config: RlConfig, state: Resolving) -> Topology:
    """The split of a node's GPUs, by `[topology]` or `[compute.topology]`; one that could not run is a problem."""
    compute = config.compute
    have = (compute.gpu_count or 0) * (compute.nodes or 1) if compute else 0
    sections = [section for section in (config.topology, compute.topology if compute else None) if section]
    for section in sections:
        path = state.place(section)
        for key, use in (("gpus_for_vllm", "serve rollouts"), ("gpus_for_training", "train")):
            if getattr(section, key) == 0:
                state.problem((*path, key), f"{key} = 0 leaves nothing to {use}", expected="at least 1")
        shares = (section.gpus_for_vllm, section.gpus_for_training, section.gpus_for_ref)
        used = sum(n or 0 for n in shares)
        if have and used > have:
            state.problem(path, f"{used} GPUs are shared out", expected=f"at most the {have} of [compute]")
        if section.gpus_for_training:
            state.warn((*path, "gpus_for_training"), _ON_GPUS)

    def share(key: str) -> int | None:
        named: list[tuple[TopologySection | None, str]] = [(section, key) for section in sections]
        return state.first(f"topology.{key}", named)

    return Topology(
        gpus_for_vllm=share("gpus_for_vllm"),
        gpus_for_training=share("gpus_for_training"),
        gpus_for_ref=share("gpus_for_ref"),
    )
