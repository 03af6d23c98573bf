"""The rewards of single turns, read from a task app's answer in the shapes that the published apps have.

An answer is not trusted: any field may be missing or have any type. A missing field is no reward; a field that is no
finite number is an error of the environment.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from synth.methods.rewards import StepRewards
from synth.taskapp.contract import read_reward

Object = dict[str, Any]


@dataclass(frozen=True)
class _Decision:
    """The reward of one decision, or of one step of the environment. call: the model call that made it, from 0.

    reached_new: whether something was reached for the first time. call is None if the answer does not name it.
    """

    reward: float
    reached_new: bool
    call: int | None


def turn_rewards(answer: Object, settings: StepRewards, *, calls: int) -> list[float] | None:
    """Return the reward of each of the rollout's model calls; None if the answer has no reward of a step.

    answer: a rollout response. A decision belongs to the call that its step names (`after_call`), else to the call
    with the same number. If an answer has more steps than calls and names no calls, all steps belong to the last call.

        decision_stepwise   r_t = r_i of `decision_samples`, else `stepwise.reward` of the step, else
                            unique_delta (kind "absolute": ach_delta) + indicator_lambda · [unique_delta > 0]
        env_sparse          r_t = `reward` of the step, else `reward_last_step` of its observation
        both                r_t + beta · (T − t) · [something new was reached]     t from 0, T decisions

    Raises `NotAReward`.
    """
    trajectories = [t for t in _list(answer.get("trajectories")) if isinstance(t, dict)]
    decisions = _paid_steps(trajectories) if settings.mode == "env_sparse" else _decisions(trajectories, settings)
    if not decisions or not calls:
        return None
    earned = [0.0] * calls
    in_order = len(decisions) <= calls
    for t, decision in enumerate(decisions):
        call = decision.call if decision.call is not None else t if in_order else calls - 1
        early = settings.beta * (len(decisions) - t) * decision.reached_new
        earned[min(max(call, 0), calls - 1)] += decision.reward + early
    return earned


def _decisions(trajectories: list[Object], settings: StepRewards) -> list[_Decision]:
    if settings.kind == "unique":
        samples = [s for t in trajectories for s in _list(t.get("decision_samples")) if isinstance(s, dict)]
        if results := [_sample(s) for s in samples if s.get("r_i") is not None]:
            return results
        stepwise = [(step, _table(step.get("info")).get("stepwise")) for step in _steps(trajectories)]
        if results := [
            _Decision(read_reward(s["reward"], "stepwise.reward"), bool(s.get("indicator")), _call(step))
            for step, s in stepwise
            if isinstance(s, dict) and s.get("reward") is not None
        ]:
            return results
    results: list[_Decision] = []
    for step in _steps(trajectories):
        info = _table(step.get("info"))
        record = _table(info.get("meta")).get("decision_rewards") or info.get("decision_rewards")
        if not isinstance(record, dict):
            continue
        record = cast(Object, record)
        unique = read_reward(record.get("unique_delta") or 0, "decision_rewards.unique_delta")
        every = read_reward(record.get("ach_delta") or 0, "decision_rewards.ach_delta")
        reward = unique if settings.kind == "unique" else every
        results.append(_Decision(reward + settings.indicator_lambda * (unique > 0), unique > 0, _call(step)))
    return results


def _sample(sample: Object) -> _Decision:
    number = sample.get("decision_index")
    call = number if isinstance(number, int) and not isinstance(number, bool) and number >= 0 else None
    return _Decision(read_reward(sample["r_i"], "decision_samples[].r_i"), bool(sample.get("indicator")), call)


def _paid_steps(trajectories: list[Object]) -> list[_Decision]:
    results: list[_Decision] = []
    says = False
    for step in _steps(trajectories):
        paid = step.get("reward")
        if paid is None:
            paid = _table(step.get("obs")).get("reward_last_step")
        says = says or paid is not None
        reward = 0.0 if paid is None else read_reward(paid, "steps[].reward")
        results.append(_Decision(reward, reward > 0, _call(step)))
    return results if says else []


def _steps(trajectories: list[Object]) -> list[Object]:
    return [cast(Object, s) for t in trajectories for s in _list(t.get("steps")) if isinstance(s, dict)]


def _call(step: Object) -> int | None:
    after = step.get("after_call")
    return after - 1 if isinstance(after, int) and not isinstance(after, bool) and after > 0 else None


def _list(value: Any) -> list[Any]:
    return cast(list[Any], value) if isinstance(value, list) else []


def _table(value: Any) -> Object:
    return cast(Object, value) if isinstance(value, dict) else {}
