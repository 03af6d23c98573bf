"""The curriculum of an RL job: the seeds that follow when those of `[data] seeds` are solved."""

from __future__ import annotations

from synth.jobs.resolve.context import ResolveContext
from synth.jobs.schema.rl import RlConfig
from synth.jobs.seeds import Seeds


def resolve_curriculum(config: RlConfig, held_out: set[int], context: ResolveContext) -> list[Seeds]:
    """The sets of seeds in their order. held_out: the seeds of `[evaluation]`, which training should not see."""
    curriculum: list[Seeds] = context.take("curriculum", config.data, "curriculum", []) or []
    if curriculum and config.training.solved_after == 0:
        context.problem(
            ("data", "curriculum"),
            f"{len(curriculum)} sets of seeds are to follow when those before are solved, and solved_after = 0 takes "
            "none for solved",
            expected="[training] solved_after of at least 1",
            fix="raise it, or remove curriculum",
        )
    for number, seeds in enumerate(curriculum, start=1):
        if shared := seeds.shared_with(held_out):
            context.warn(
                ("data", "curriculum"),
                f"shares {len(shared)} seeds of its set {number} with [evaluation], such as {min(shared)}",
            )
    return curriculum
