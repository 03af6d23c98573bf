"""Resolve the collapse watch of an RL job: its signs, its action, and what follows solved seeds."""

from __future__ import annotations

from synth.jobs.resolve.context import ResolveContext
from synth.jobs.schema.rl import RlConfig
from synth.jobs.schema.watch import WatchSection
from synth.methods.seeds import Seeds
from synth.methods.watch import WatchSettings


def resolve_watch(section: WatchSection | None, context: ResolveContext) -> WatchSettings | None:
    """Return the watch's settings; None if it is turned off."""
    section = context.table(section, WatchSection, ("training", "watch"))
    if section.enabled:
        return context.build(WatchSettings, section, "watch.")
    for name in sorted(section.model_fields_set - {"enabled"}):
        context.warn(context.at(section, name), "has no effect: enabled = false")
    return context.take("watch", section, "enabled") or None


def check_enough(seeds: Seeds, name: str, groups: int, context: ResolveContext) -> None:
    """Refuse fewer seeds than an iteration has groups. name: the key of `[data]` that has them."""
    if len(seeds) >= groups:
        return
    context.problem(
        ("data", name),
        f"{len(seeds)} seed{'s' * (len(seeds) > 1)}, and an iteration has {groups} groups (batch_size), each on a seed "
        "of its own",
        expected=f"at least {groups} seeds",
        fix="give more seeds, or lower [training] batch_size",
    )


def resolve_curriculum(config: RlConfig, held_out: set[int], groups: int, context: ResolveContext) -> list[Seeds]:
    """Return the sets of seeds in their order. held_out: the seeds of `[evaluation]`, which training should not see.

    groups: of an iteration, each on a seed of its own.
    """
    curriculum: list[Seeds] = context.take("curriculum", config.data, "curriculum") or []
    if curriculum and config.training.solved_after == 0:
        context.problem(
            ("data", "curriculum"),
            f"{len(curriculum)} sets of seeds are to follow when those before are solved, and solved_after = 0 takes "
            "none for solved",
            expected="[training] solved_after of at least 1",
            fix="raise it, or remove curriculum",
        )
    for number, seeds in enumerate(curriculum, start=1):
        check_enough(seeds, "curriculum", groups, context)
        if shared := seeds.shared_with(held_out):
            context.warn(
                ("data", "curriculum"),
                f"shares {len(shared)} seeds of its set {number} with [evaluation], such as {min(shared)}",
            )
    return curriculum
