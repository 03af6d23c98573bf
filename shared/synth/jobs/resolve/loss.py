"""Resolve the loss of an RL job: its clip, its corrections, and the reference that the policy is held near."""

from __future__ import annotations

from synth.jobs.parse.toml import Path
from synth.jobs.resolve.context import ResolveContext, is_written
from synth.jobs.schema.correction import CorrectionSection
from synth.jobs.schema.rl import RlConfig, TrainingSection
from synth.jobs.schema.sections import default_of
from synth.methods.base import Mode, Placement
from synth.methods.losses import LOSSES, CorrectionSettings, find_spec
from synth.methods.rl import Loss
from synth.plugins import is_plugin

#: A mean over hundreds of tokens stays nearer to 1 than one token does, by more than this factor either way.
_FAR_FACTOR = 20
#: As much as most environments pay for success.
_OVERLONG_PENALTY = 1.0


def resolve_loss(config: RlConfig, context: ResolveContext) -> Loss:
    """Return `[training] loss`, else the loss of `[algorithm] variety`. A plugin has no variety."""
    if is_plugin(config.training.loss):
        return context.take("loss", config.training, "loss")
    loss = context.first("loss", [(config.training, "loss"), (config.algorithm, "variety")])
    # Another kind's variety is a problem already.
    return loss if loss in LOSSES else default_of(TrainingSection, "loss")


def resolve_clip(training: TrainingSection, loss: Loss, context: ResolveContext) -> tuple[float, float]:
    """Return the two ends of the clip, and warn of a value that suits another loss's measure."""
    spec = find_spec(loss)
    ends: list[float] = []
    for key, default in (("clip_low", spec.clip_low), ("clip_high", spec.clip_high)):
        value: float = context.take(key, training, key, default)
        if loss in LOSSES and not default / _FAR_FACTOR <= value <= default * _FAR_FACTOR:
            context.warn(("training", key), f"= {value:g} is far from {default:g}, the usual value of {loss}")
        ends.append(value)
    return ends[0], ends[1]


def check_own_keys(training: TrainingSection, loss: Loss, context: ResolveContext) -> None:
    """Report keys of another loss."""
    for key in {key for spec in LOSSES.values() for key in spec.own_keys}:
        if is_written(training, key) and not (loss in LOSSES and key in LOSSES[loss].own_keys):
            losses = [spec.name for spec in LOSSES.values() if key in spec.own_keys]
            context.problem(
                ("training", key),
                f"{key} = {getattr(training, key):g} is of {' and '.join(losses)}, and the loss is {loss}",
                expected=f'[training] loss = "{losses[0]}", or no {key}',
                fix=f"remove {key}, or set the loss",
            )


def resolve_truncation(training: TrainingSection, loss: Loss, context: ResolveContext) -> float:
    """Return the cap on how much more a token may count because the policy that sampled it found it less likely."""
    named = [(training, "token_truncation"), (training.correction, "token_truncation")]
    return context.first("token_truncation", named, find_spec(loss).token_truncation)


def resolve_advantage(training: TrainingSection, context: ResolveContext) -> str | None:
    """Return the plugin that gives advantages; None if rollouts are compared with their group."""
    advantage: str | None = context.take("advantage", training, "advantage")
    if advantage is not None and is_written(training, "advantage_std"):
        context.problem(
            ("training", "advantage_std"),
            f"advantage_std sets how rewards are divided, and {advantage!r} gives the advantages",
            expected="one of the two",
            fix="remove advantage_std, or advantage",
        )
    return advantage


def resolve_correction(section: CorrectionSection | None, context: ResolveContext) -> CorrectionSettings:
    """Return which sequences are rejected because of the policy that sampled them."""
    section = context.table(section, CorrectionSection, ("training", "correction"))
    gates: bool = context.take("correction.gates", section, "gates")
    gated = {key: _gate(section, key, context) for key in ("on_policy", "off_policy")}
    settings = context.build(CorrectionSettings, section, "correction.", gates=True, **gated)
    if gates:
        return settings
    context.leave_out(*(f"correction.{key}" for key in ("on_policy", "off_policy", "gate_tokens", "rejected")))
    for key in ("on_policy", "off_policy", "gate_tokens", "rejected"):
        if is_written(section, key):
            context.warn(context.at(section, key), "has no effect: gates = false")
    return CorrectionSettings(gates=False)


def _gate(section: CorrectionSection, key: str, context: ResolveContext) -> tuple[float, float]:
    low, high = context.take(f"correction.{key}", section, key)
    if not low < 1 < high:
        upside_down = high < 1 < low
        context.problem(
            context.at(section, key),
            f"{key} = [{low:g}, {high:g}] " + ("is upside down" if upside_down else "rejects tokens without drift"),
            expected="[least, largest] with least < 1 < largest",
            fix=f"write [{high:g}, {low:g}]" if upside_down else "widen it, or turn both off with gates = false",
        )
    return low, high


def resolve_overlong_penalty(training: TrainingSection, context: ResolveContext) -> float:
    """Return the amount by which the reward of a cut-off rollout is lowered; 0 if the file does not set it."""
    penalty: float = context.take("overlong_penalty", training, "overlong_penalty", _OVERLONG_PENALTY)
    if training.overlong == "penalise":
        return penalty
    if is_written(training, "overlong_penalty"):
        context.problem(
            ("training", "overlong_penalty"),
            f"overlong_penalty = {penalty:g} has no effect: overlong = {training.overlong!r}",
            expected='overlong = "penalise"',
            fix="set it, or remove overlong_penalty",
        )
    return context.record("overlong_penalty", 0.0, context.origins["overlong_penalty"])


def resolve_reference(config: RlConfig, mode: Mode, context: ResolveContext) -> Placement:
    """Return the placement of the reference model: "none" exactly if there is no KL term."""
    path, placement = _requested_placement(config)
    where = "default" if path is None else context.document.where(path)
    beta = config.training.kl_beta
    if placement == "none" and beta > 0:
        context.problem(
            ("training", "kl_beta"),
            f"kl_beta = {beta:g} has no reference model to be measured against",
            expected='[reference] placement = "shared" or "dedicated"',
            fix='set placement = "shared", or remove kl_beta',
        )
    if path is not None and placement != "none" and not beta:
        context.warn(path, "has no effect: [training].kl_beta is 0, so there is no KL term")
        return context.record_change(
            "reference", context.record("reference", "none", where), f"{placement!r} is not used: kl_beta is 0"
        )
    if path is not None and placement == "shared" and mode == "full":
        context.warn(path, '= "shared" is a frozen copy of the source: every weight of the policy itself is trained')
    return context.record("reference", placement, where)


def _requested_placement(config: RlConfig) -> tuple[Path | None, Placement]:
    """Return the placement and its key. The published client always writes "none", so other values come first."""
    named: list[tuple[Path, Placement | None]] = []
    if config.reference is not None:
        named.append((("reference", "placement"), config.reference.placement))
    if config.topology is not None:
        named.append((("topology", "reference_placement"), config.topology.reference_placement))
    if config.compute is not None and config.compute.topology is not None:
        placement = config.compute.topology.reference_placement
        named.append((("compute", "topology", "reference_placement"), placement))
    requested: list[tuple[Path, Placement]] = [(path, value) for path, value in named if value is not None]
    for path, value in requested:
        if value != "none":
            return path, value
    return requested[0] if requested else (None, "none")
