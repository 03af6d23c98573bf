"""Resolve a job's teacher, and check that the job's other settings suit it."""

from __future__ import annotations

from synth.errors import UserError
from synth.jobs.parse.toml import Path
from synth.jobs.resolve.context import ResolveContext, is_written
from synth.jobs.schema.rl import RlConfig
from synth.methods.distillation import DistillationSettings
from synth.methods.losses import find_spec, list_losses
from synth.methods.rl import Loss
from synth.methods.rollouts import Sampling
from synth.models import ModelSpec

_TABLE: Path = ("distillation",)


def taught_loss(config: RlConfig, loss: Loss, context: ResolveContext) -> Loss:
    """Return the loss of a job. A teacher's advantages are per token, so the default, gspo, becomes gspo_token."""
    if config.distillation is None or find_spec(loss).per_token:
        return loss
    for table, key, path in (
        (config.training, "loss", ("training", "loss")),
        (config.algorithm, "variety", ("algorithm", "variety")),
    ):
        if table is not None and is_written(table, key):
            context.problem(
                path,
                f"{loss} has one advantage for a whole sequence, and a teacher gives each token its own",
                expected=list_losses(per_token=True),
                fix=f'set {key} = "gspo_token", or remove [distillation]',
            )
            return loss
    return context.record_change("loss", "gspo_token", "a teacher gives each token an advantage of its own")


def resolve_distillation(
    config: RlConfig, spec: ModelSpec | None, sampling: Sampling, context: ResolveContext
) -> DistillationSettings | None:
    """Return the teacher and its weights, collecting problems in `context`; None if the job has no teacher."""
    section = config.distillation
    if section is None:
        return context.record("distillation", None, "default")
    _check_teacher(section.teacher, context)
    if sampling.temperature != 1.0:
        context.problem(
            _TABLE,
            f"the policy samples at temperature {sampling.temperature:g}, and a teacher's probabilities are at 1",
            expected="[rollout.policy_config] temperature = 1.0",
            fix="set it, or remove [distillation]",
        )
    if spec is not None and spec.vision is not None:
        context.problem(
            _TABLE,
            f"{spec.id!r} sees images, and a teacher is shown tokens of text alone",
            expected="a policy that reads text",
            fix="choose another [model] base, or remove [distillation]",
        )
    training = config.training
    if training.dynamic_sampling:
        context.problem(
            ("training", "dynamic_sampling"),
            "dynamic_sampling replaces groups that teach nothing, and with a teacher each group teaches",
            expected="dynamic_sampling = false",
            fix="remove it, or [distillation]",
        )
    if config.data.curriculum:
        context.problem(
            ("data", "curriculum"),
            "harder seeds follow when the present ones are solved, and with a teacher no seeds count as solved",
            expected="all seeds in [data] seeds",
            fix="remove curriculum, or [distillation]",
        )
    return context.build(DistillationSettings, section, "distillation.")


def resolve_solved_after(config: RlConfig, context: ResolveContext) -> int:
    """Return how many solved iterations end the job. With a teacher none: rollouts with the best reward still learn."""
    solved_after: int = context.take("solved_after", config.training, "solved_after")
    if config.distillation is None or not solved_after:
        return solved_after
    if is_written(config.training, "solved_after"):
        context.problem(
            ("training", "solved_after"),
            f"solved_after = {solved_after} ends a job by its rewards, and with a teacher no seeds count as solved",
            expected="solved_after = 0",
            fix="remove it, or [distillation]",
        )
    return context.record_change("solved_after", 0, "a teacher teaches beyond the largest reward")


def _check_teacher(teacher: str, context: ResolveContext) -> None:
    where = context.document.where((*_TABLE, "teacher"))
    try:
        spec = context.registry.find(teacher, where=where)
    except UserError as error:
        context.problems += error.problems
        return
    if spec.stand_in is not None:
        what = f"{spec.stand_in!r} stands in for {spec.base!r}, whose own weights are not on this cluster"
        context.warnings.append(f"{where} {what}")
