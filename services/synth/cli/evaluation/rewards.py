"""The rewards of an evaluation rollout by rollout, as the log of its job has them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, cast

from synth.client import Client
from synth.console.errors import CliError, UsageProblem
from synth.estimates.repeated import by_measure, seed_means

_READ = ("rollout.completed", "rollout.judged", "rollout.failed", "eval.completed")


@dataclass(frozen=True)
class RolloutReward:
    """One rollout of an evaluation. outcome: "ok", or how the policy failed. seconds: of wall-clock time.

    reward: the reported one; in a judged job the judges' score. completed: the task app's reward.
    """

    seed: int
    reward: float
    completed: float
    outcome: str
    calls: int
    tokens: int
    seconds: float
    rollout: str


@dataclass
class Evaluation:
    """The results of one evaluation of a job. step: the step of the evaluated policy, None in an evaluation job.

    rewards: by rollout; a seed may have several. failed: the seeds of rollouts without a reward, by rollout: the
    environment failed, or the judges did. rollouts_per_seed: the requested number.
    success_threshold: of pass@k, None without one.
    """

    job_id: str
    step: int | None = None
    rollouts_per_seed: int = 1
    success_threshold: float | None = None
    rewards: dict[str, RolloutReward] = field(default_factory=dict[str, RolloutReward])
    failed: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def by_seed(self) -> dict[int, float]:
        """The mean reward of each seed."""
        return seed_means(self._by_seed("reward"))

    @property
    def measures(self) -> dict[str, dict[int, float]]:
        """mean@k and pass@k, seed by seed; none where each seed was played once and no threshold is given."""
        return by_measure(
            self._by_seed("reward"), self._by_seed("completed"), self.rollouts_per_seed, self.success_threshold
        )

    @property
    def title(self) -> str:
        """The name of the evaluation: its job, and the step within it."""
        return self.job_id if self.step is None else f"{self.job_id} step {self.step}"

    def _by_seed(self, name: str) -> dict[int, list[float]]:
        values: dict[int, list[float]] = {}
        for rollout in self.rewards.values():
            values.setdefault(rollout.seed, []).append(getattr(rollout, name))
        return values


def read_evaluation(client: Client, job_id: str, *, step: int | None = None) -> Evaluation:
    """Read an evaluation as `find_evaluation` does. Raises `CliError` if nothing was evaluated."""
    evaluation = find_evaluation(client, job_id, step=step)
    if evaluation is None:
        fix = f"synthctl jobs events {job_id} shows what happened to it"
        raise CliError(f"nothing of {job_id} was evaluated", fix=fix)
    return evaluation


def find_evaluation(client: Client, job_id: str, *, step: int | None = None) -> Evaluation | None:
    """Read an evaluation of a job; of an RL job the one of this step, or the last complete one.

    None if nothing was evaluated. Raises `UsageProblem` for a step without an evaluation.
    """
    by_step: dict[int, Evaluation] = {}
    complete: list[int] = []
    in_job = False
    for event in client.jobs.events(job_id):
        if event.type not in _READ:
            continue
        data = cast(dict[str, Any], event.data) if isinstance(event.data, dict) else {}
        iteration = int(data.get("iteration") or 0)
        if event.type == "eval.completed":
            complete.append(iteration)
            evaluation = by_step.setdefault(iteration, Evaluation(job_id))
            evaluation.rollouts_per_seed = int(data.get("rollouts_per_seed") or 1)
            evaluation.success_threshold = data.get("success_threshold")
            in_job = in_job or data.get("step") is not None
        elif data.get("mode") == "eval":
            _add(by_step.setdefault(iteration, Evaluation(job_id)), event.type, data)
    if step is not None and (not in_job or step not in complete):
        steps = ", ".join(map(str, sorted(complete))) if in_job else ""
        raise UsageProblem(
            f"{job_id} has no evaluation of step {step}",
            expected=f"one of {steps}" if steps else "no --step: this is no job with evaluations of its own",
            where="--step",
        )
    chosen = step if step is not None else max(complete, default=max(by_step, default=None))
    if chosen is None or not (chosen in by_step and (by_step[chosen].rewards or by_step[chosen].failed)):
        return None
    evaluation = by_step[chosen]
    evaluation.step = chosen if in_job else None
    return evaluation


def _add(evaluation: Evaluation, type: str, data: dict[str, Any]) -> None:
    rollout = str(data["rollout_id"])
    if type == "rollout.judged":
        _add_scores(evaluation, rollout, data["reward"])
        return
    seed = int(data["seed"])
    if type == "rollout.failed":
        evaluation.failed[rollout] = seed
        return
    evaluation.failed.pop(rollout, None)
    evaluation.rewards[rollout] = RolloutReward(
        seed=seed,
        reward=float(data["reward"]),
        completed=float(data["reward"]),
        outcome=str(data.get("outcome") or "ok"),
        calls=int(data.get("calls") or 0),
        tokens=int(data.get("completion_tokens") or 0),
        seconds=float(data.get("seconds") or 0),
        rollout=rollout,
    )


def _add_scores(evaluation: Evaluation, rollout: str, reward: float | None) -> None:
    """Replace a rollout's reward with the judges' score; None if they failed to score it, so that it does not count."""
    completed = evaluation.rewards.get(rollout)
    if completed is None:
        return
    if reward is None:
        evaluation.failed[rollout] = evaluation.rewards.pop(rollout).seed
    else:
        evaluation.rewards[rollout] = replace(completed, reward=reward)
