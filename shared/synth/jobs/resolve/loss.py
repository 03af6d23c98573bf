"""Resolve the loss of an RL job: its clip, its corrections, and the reference that the policy is held near."""

from __future__ import annotations

from typing import NamedTuple

from synth.jobs.parse.toml import Path
from synth.jobs.resolve.context import ResolveContext, is_written
from synth.jobs.resolved import CorrectionSettings, Loss, Mode, Placement
from synth.jobs.schema.correction import CorrectionSection
from synth.jobs.schema.rl import RlConfig, TrainingSection
from synth.jobs.schema.sections import default_of
from synth.plugins import is_plugin


class _Defaults(NamedTuple):
    """clip_low, clip_high: in the loss's own measure. token_truncation: the cap on a token's correction."""

    clip_low: float
    clip_high: float
    token_truncation: float


#: gspo: arXiv 2507.18071, §5.1. grpo: DAPO's ends (arXiv 2503.14476). dppo: the bounds on a probability of the open
#: implementations of arXiv 2602.04879, whose §5.4 warns of a tight truncation. cispo: no lower bound, as in
#: MiniMax-M1 (arXiv 2506.13585); the upper end is a weight of 4, as in an open implementation.
DEFAULTS: dict[Loss, _Defaults] = {
    "gspo": _Defaults(3e-4, 4e-4, 2.0),
    "gspo_token": _Defaults(3e-4, 4e-4, 2.0),
    "grpo": _Defaults(0.2, 0.28, 2.0),
    "dppo": _Defaults(0.2, 0.2, 20.0),
    "cispo": _Defaults(1.0, 3.0, 2.0),
}
#: A mean over hundreds of tokens stays nearer to 1 than one token does, by more than this factor either way.
_FAR_FACTOR = 20
#: As much as most environments pay for success.
_OVERLONG_PENALTY = 1.0


def resolve_loss(config: RlConfig, context: ResolveContext) -> Loss:
    """Return `[training] loss`, else the loss of `[algorithm] variety`. A plugin has no variety."""
    if config.training.loss is not None and is_plugin(config.training.loss):
        return context.take("loss", config.training, "loss")
    loss = context.first("loss", [(config.training, "loss"), (config.algorithm, "variety")])
    # Another kind's variety is a problem already.
    return loss if loss in DEFAULTS else default_of(TrainingSection, "loss")


def resolve_clip(training: TrainingSection, loss: Loss, context: ResolveContext) -> tuple[float, float]:
    """Return the two ends of the clip, and warn of a value that suits another loss's measure."""
    defaults = _defaults(loss)
    ends: list[float] = []
    for key, default in (("clip_low", defaults.clip_low), ("clip_high", defaults.clip_high)):
        value: float = context.take(key, training, key, default)
        if loss in DEFAULTS and not default / _FAR_FACTOR <= value <= default * _FAR_FACTOR:
            context.warn(("training", key), f"= {value:g} is far from {default:g}, the usual value of {loss}")
        ends.append(value)
    return ends[0], ends[1]


def resolve_dual_clip(training: TrainingSection, loss: Loss, context: ResolveContext) -> float | None:
    """Return the second clip of grpo; None if it is off."""
    dual: float | None = context.take("dual_clip", training, "dual_clip")
    if dual is not None and loss != "grpo":
        context.problem(
            ("training", "dual_clip"),
            f"dual_clip = {dual:g} is of grpo, and the loss is {loss}",
            expected='[training] loss = "grpo", or no dual_clip',
            fix="remove dual_clip, or set the loss",
        )
    return dual


def resolve_truncation(training: TrainingSection, loss: Loss, context: ResolveContext) -> float:
    """Return the cap on how much more a token may count because the policy that sampled it found it less likely."""
    named = [(training, "token_truncation"), (training.correction, "token_truncation")]
    return context.first("token_truncation", named, _defaults(loss).token_truncation)


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


def _defaults(loss: Loss) -> _Defaults:
    """Return the defaults of a loss. A plugin has grpo's, as most losses bound the ratio of a token."""
    return DEFAULTS.get(loss, DEFAULTS["grpo"])


def resolve_correction(section: CorrectionSection | None, context: ResolveContext) -> CorrectionSettings:
    """Return which sequences are rejected because of the policy that sampled them."""
    section = section or CorrectionSection()
    gates: bool = context.take("correction.gates", section, "gates")
    on_policy, off_policy = (_gate(section, key, context) for key in ("on_policy", "off_policy"))
    settings = CorrectionSettings(
        on_policy=on_policy,
        off_policy=off_policy,
        gate_tokens=context.take("correction.gate_tokens", section, "gate_tokens"),
        rejected=context.take("correction.rejected", section, "rejected"),
    )
    if gates:
        return settings
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
    return 0.0


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
