"""Detects the collapse of a policy from the metrics of its steps, by one rule for each sign of a collapse.

Invariants. The warnings are a pure function of the steps' values in their order: a run that is resumed finds what one
that never stopped would have found. A step that lacks a metric (nothing was trained in it) does not count for its
rules. A rule warns once its metric was beyond the limit for `patience` steps in a row, and not again until it was
within the limit for as many.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from synth.errors import Problem
from synth.events import TrainWarned
from synth.methods.watch import WatchSettings
from synth.trainer.collapse.judge_drift import JudgeDrift
from synth.trainer.collapse.learning_signal import SOLVED, LearningSignal

Values = Mapping[str, float]

#: A policy has learned when its mean reward has risen at least so far and is at most so far from its best, both in
#: standard deviations of the rewards.
_MIN_RISE = 0.5
_MAX_DROP = 0.25


@dataclass(frozen=True)
class Rule:
    """A sign of collapse. name: also of its threshold in `[training.watch]`.

    metric: computed from a step's values; None if the step lacks them. against: the meaning of the threshold: a factor
    on the mean of the first steps that the metric goes below or above, a rise over that mean, or the limit itself.
    what, meaning, fix: the metric in words, its likely cause, and how to fix it. excused_if_learned: a policy that has
    learned shows the sign too, so it does not count while the reward has risen and is near its best, or is the most.
    """

    name: str
    metric: Callable[[Values], float | None]
    against: Literal["below first", "above first", "rise", "above"]
    what: str
    meaning: str
    fix: str
    excused_if_learned: bool = False


def _metric(name: str) -> Callable[[Values], float | None]:
    return lambda values: values.get(name)


def _no_signal_share(values: Values) -> float | None:
    if "groups_kept" not in values or "groups_dropped" not in values:
        return None
    groups = values["groups_kept"] + values["groups_dropped"]
    return values["groups_dropped"] / groups if groups else None


def _clip_gap(values: Values) -> float | None:
    if "clip_rate_positive" not in values or "clip_rate_negative" not in values:
        return None
    return abs(values["clip_rate_positive"] - values["clip_rate_negative"])


def _stale_share(values: Values) -> float | None:
    if not values.get("sequences") or "sequences_stale" not in values:
        return None
    return values["sequences_stale"] / values["sequences"]


RULES: tuple[Rule, ...] = (
    Rule(
        "entropy_low",
        _metric("entropy"),
        "below first",
        what="the entropy of the sampled tokens is {}",
        meaning="the policy gives only one answer, and no longer explores",
        fix="lower the learning rate, raise [training] clip_high, or go on from an earlier checkpoint",
        excused_if_learned=True,
    ),
    Rule(
        "entropy_high",
        _metric("entropy"),
        "above first",
        what="the entropy of the sampled tokens is {}",
        meaning="the policy loses its language",
        fix="lower the learning rate, or go on from an earlier checkpoint",
    ),
    Rule(
        "unique_low",
        _metric("completion_unique_rate"),
        "below first",
        what="the share of different replies within a group is {}",
        meaning="rollouts of one seed are copies of each other, and nothing can be learned from them",
        fix="lower the learning rate, or raise the temperature",
        excused_if_learned=True,
    ),
    Rule(
        "length_low",
        _metric("completion_tokens_mean"),
        "below first",
        what="a rollout samples {} tokens",
        meaning="the policy has ceased to answer",
        fix="look at replies of the last checkpoint: an empty one must not earn more than a wrong one",
    ),
    Rule(
        "length_high",
        _metric("completion_tokens_mean"),
        "above first",
        what="a rollout samples {} tokens",
        meaning="the policy rambles",
        fix="look at replies of the last checkpoint, and whether the reward pays for length; lower the learning rate",
    ),
    Rule(
        "truncated_rise",
        _metric("completion_truncated_rate"),
        "rise",
        what="the share of replies that are cut off for their length is {}",
        meaning="the policy does not end its replies",
        fix="raise max_tokens if the replies are good ones, else lower the learning rate",
    ),
    Rule(
        "no_signal",
        _no_signal_share,
        "above",
        what="the share of groups whose rewards are all the same is {}",
        meaning="almost nothing is left to learn from",
        fix="check the reward of the task app; raise group_size or the temperature; choose seeds of another difficulty",
        excused_if_learned=True,
    ),
    Rule(
        "clip_gap",
        _clip_gap,
        "above",
        what="the clip rates of good and of bad sequences are {} apart",
        meaning="updates are one-sided",
        fix="lower the learning rate, or train on fewer minibatches",
        excused_if_learned=True,
    ),
    Rule(
        "mismatch_kl",
        _metric("mismatch_kl"),
        "above",
        what="the KL divergence of the policy that trains from the one that sampled is {}",
        meaning="the policy that trains differs from the one that sampled",
        fix="lower async_level; at level 0, compare the engine's dtype and kernels with the trainer's",
    ),
    Rule(
        "grad_norm_high",
        _metric("grad_norm"),
        "above first",
        what="the norm of the gradient is {}",
        meaning="the updates blow up",
        fix="lower the learning rate or grad_clip",
    ),
    Rule(
        "reward_drop",
        _metric("reward_drop"),
        "above",
        what="the mean reward is {} standard deviations below its best",
        meaning="the policy unlearns",
        fix="go on from an earlier checkpoint with a lower learning rate",
    ),
    Rule(
        "stale_share",
        _stale_share,
        "above",
        what="the share of sequences that are too old to be trained is {}",
        meaning="most of the collected rollouts are thrown away",
        fix="lower async_level or max_concurrent_rollouts, or raise max_staleness",
    ),
    Rule(
        "judge_drift",
        _metric("judge_drift"),
        "above",
        what="the judges' scores have risen since the first iterations, and the environment's reward has fallen by {} "
        "of its standard deviations",
        meaning="the policy learns to please the judges instead of the environment",
        fix="read some rollouts with `synthctl rollouts ls --sort best`; give the environment a higher weight, or the "
        "rubric a criterion for the missing behaviour",
    ),
)


class CollapseDetector:
    """The rules applied to one job, from its first step on.

    settings: None leaves the learning signal alone. solved_after, stages, taught: as of `LearningSignal`.
    """

    def __init__(
        self, settings: WatchSettings | None, *, solved_after: int = 0, stages: int = 1, taught: bool = False
    ) -> None:
        self._rule_states = [] if settings is None else _rule_states(settings)
        self._window = 1 if settings is None else settings.window
        self._reward = _RewardTrend(self._window)
        self._drift = JudgeDrift(self._window)
        self._signal = LearningSignal(solved_after=solved_after, stages=stages, taught=taught)
        self._images_dropped = False

    def add(self, step: int, values: Values) -> list[TrainWarned]:
        """Return the warnings of the next step, in the order of the rules."""
        behind = self._signal.is_behind(values)
        if not behind:
            self._reward.add(values)
        if not behind and (drop := self._reward.drop) is not None:
            values = {**values, "reward_drop": drop}
        if not behind and (drift := self._drift.add(values)) is not None:
            values = {**values, "judge_drift": drift}
        learned = self._reward.learned
        signal = self._signal.add(step, values, learned=learned)
        solved = behind or self._signal.solved_in_a_row > 0 or (signal is not None and signal.rule == SOLVED)
        warnings = [
            warned for state in self._rule_states if (warned := state.add(step, values, learned=learned or solved))
        ]
        if not self._images_dropped and values.get("images_dropped"):
            self._images_dropped = True
            warnings.append(_dropped_images(step, values["images_dropped"]))
        if signal is None:
            return warnings
        if signal.action == "advance":
            # Harder seeds earn less, which is no fall.
            self._reward, self._drift = _RewardTrend(self._window), JudgeDrift(self._window)
        return [*warnings, signal]

    @property
    def stage(self) -> int:
        """Which seeds the next iterations play: 0 for `[data] seeds`, k for the k-th set of the curriculum."""
        return self._signal.stage

    def at_the_end(self, step: int) -> TrainWarned | None:
        """Return the warning of a job whose last step this was and in which nothing was trained."""
        return self._signal.at_the_end(step)


def _dropped_images(step: int, count: float) -> TrainWarned:
    """Return the one warning of a job whose model is not shown every image."""
    what = f"{count:.0f} images of the rollouts of iteration {step} were dropped, and the model was not shown them"
    return TrainWarned(
        step=step,
        rule="images_dropped",
        value=count,
        threshold=0.0,
        over=1,
        action="warn",
        problem=Problem(
            what=what,
            expected="at most as many images as a message and a prompt may show",
            fix="have the task app send fewer, or raise [model] max_images_per_message",
        ),
    )


def _rule_states(settings: WatchSettings) -> list[_RuleState]:
    thresholds = {rule: float(getattr(settings, rule.name)) for rule in RULES}
    return [_RuleState(rule, threshold, settings) for rule, threshold in thresholds.items() if threshold]


@dataclass
class _RewardTrend:
    """The mean reward over the last `window` steps, or over all of them while there are fewer.

    first: the mean of the first `window` steps. best: the highest mean so far.
    reward_std: the largest standard deviation of the rewards of a batch so far.
    """

    window: int
    recent: deque[float] = field(init=False)
    first: float | None = None
    best: float = -math.inf
    reward_std: float = 0.0

    def __post_init__(self) -> None:
        self.recent = deque(maxlen=self.window)

    def add(self, values: Values) -> None:
        if "reward_mean" not in values:
            return
        self.recent.append(values["reward_mean"])
        self.reward_std = max(self.reward_std, values.get("reward_std", 0.0))
        self.best = max(self.best, self._mean())
        if self.first is None and len(self.recent) == self.window:
            self.first = self._mean()

    @property
    def drop(self) -> float | None:
        """How far the mean is below its best, in standard deviations; None while `reward_std` is 0."""
        return (self.best - self._mean()) / self.reward_std if self.reward_std else None

    @property
    def learned(self) -> bool:
        """Whether the mean has risen and is near its best."""
        drop = self.drop
        if drop is None or self.first is None:
            return False
        return self._mean() - self.first >= _MIN_RISE * self.reward_std and drop <= _MAX_DROP

    def _mean(self) -> float:
        return sum(self.recent) / len(self.recent)


@dataclass
class _RuleState:
    """The state of one rule. first: the metric in the first steps of the job.

    steps_beyond, steps_within: how many of the last steps in a row had the metric beyond, or within, its limit.
    active: the rule has warned, and the metric was not within the limit for `patience` steps since.
    """

    rule: Rule
    threshold: float
    settings: WatchSettings
    first: list[float] = field(default_factory=list[float])
    steps_beyond: int = 0
    steps_within: int = 0
    active: bool = False

    def add(self, step: int, values: Values, *, learned: bool) -> TrainWarned | None:
        """Return the warning that this step causes, if there is one. learned: whether the policy has learned."""
        value = self.rule.metric(values)
        if value is None:
            return None
        if self.rule.against != "above" and len(self.first) < self.settings.window:
            self.first.append(value)
            return None
        limit = self._limit()
        if limit is None:
            return None
        beyond = value < limit if self.rule.against == "below first" else value > limit
        if not beyond or (learned and self.rule.excused_if_learned):
            self.steps_beyond, self.steps_within = 0, self.steps_within + 1
            self.active = self.active and self.steps_within < self.settings.patience
            return None
        self.steps_beyond, self.steps_within = self.steps_beyond + 1, 0
        if self.active or self.steps_beyond < self.settings.patience:
            return None
        self.active = True
        return self._warned(step, value, limit)

    def _limit(self) -> float | None:
        """Return the limit of the metric; None if the limit is a factor on a mean that is not positive."""
        mean = sum(self.first) / len(self.first) if self.first else 0.0
        match self.rule.against:
            case "above":
                return self.threshold
            case "rise":
                return mean + self.threshold
            case "below first" | "above first":
                return mean * self.threshold if mean > 0 else None

    def _warned(self, step: int, value: float, limit: float) -> TrainWarned:
        rule, steps = self.rule, self.steps_beyond
        long = f", the last of {steps} in a row beyond its limit" if steps > 1 else ""
        return TrainWarned(
            step=step,
            rule=rule.name,
            value=value,
            threshold=limit,
            over=steps,
            action=self.settings.action,
            problem=Problem(
                what=f"{rule.what.format(f'{value:.3g}')} in iteration {step}{long}: {rule.meaning}",
                expected=self._expected(limit),
                fix=rule.fix,
            ),
        )

    def _expected(self, limit: float) -> str:
        side = "at least" if self.rule.against == "below first" else "at most"
        if not self.first:
            return f"{side} {limit:.3g}"
        mean = sum(self.first) / len(self.first)
        how = f"{self.threshold:.3g} above" if self.rule.against == "rise" else f"{self.threshold:.3g} times"
        return f"{side} {limit:.3g}, {how} the {mean:.3g} of the first {len(self.first)} iterations"
