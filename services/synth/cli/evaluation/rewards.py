"""The rewards of an evaluation seed by seed, as the log of its job has them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

from synth.api.schemas import EventView
from synth.cli.api.client import Client
from synth.cli.errors import CliError, UsageProblem


@dataclass(frozen=True)
class SeedReward:
    """One rollout of an evaluation. outcome: "ok", or how the policy failed. seconds: of wall-clock time."""

    seed: int
    reward: float
    outcome: str
    calls: int
    tokens: int
    seconds: float
    rollout: str


@dataclass
class Evaluation:
    """What one evaluation of a job measured. step: whose policy it judged, None in an evaluation job.

    rewards: by seed. failed: the seeds whose rollouts the environment failed, which have no reward.
    """

    job_id: str
    step: int | None = None
    rewards: dict[int, SeedReward] = field(default_factory=dict[int, SeedReward])
    failed: set[int] = field(default_factory=set[int])

    @property
    def by_seed(self) -> dict[int, float]:
        """The rewards alone."""
        return {seed: found.reward for seed, found in self.rewards.items()}

    @property
    def title(self) -> str:
        """What it is called: its job, and the step within it."""
        return self.job_id if self.step is None else f"{self.job_id} step {self.step}"


def read_evaluation(client: Client, job_id: str, *, step: int | None = None) -> Evaluation:
    """As `find_evaluation`. Raises `CliError` where nothing was evaluated."""
    evaluation = find_evaluation(client, job_id, step=step)
    if evaluation is None:
        fix = f"synthctl jobs events {job_id} shows what happened to it"
        raise CliError(f"nothing of {job_id} was evaluated", fix=fix)
    return evaluation


def find_evaluation(client: Client, job_id: str, *, step: int | None = None) -> Evaluation | None:
    """An evaluation of a job: of an RL job that of this step, or the last one that is complete.

    None where nothing was evaluated. Raises `UsageProblem` for a step without an evaluation.
    """
    found: dict[int, Evaluation] = {}
    complete: list[int] = []
    in_job = False
    for event in _events(client, job_id):
        data = cast(dict[str, Any], event.data) if isinstance(event.data, dict) else {}
        iteration = int(data.get("iteration") or 0)
        if event.type == "eval.completed":
            complete.append(iteration)
            in_job = in_job or data.get("step") is not None
        elif data.get("mode") == "eval":
            _add(found.setdefault(iteration, Evaluation(job_id)), event.type, data)
    if step is not None and (not in_job or step not in complete):
        steps = ", ".join(map(str, sorted(complete))) if in_job else ""
        raise UsageProblem(
            f"{job_id} has no evaluation of step {step}",
            expected=f"one of {steps}" if steps else "no --step: this is no job with evaluations of its own",
            where="--step",
        )
    wanted = step if step is not None else max(complete, default=max(found, default=None))
    if wanted is None or wanted not in found:
        return None
    evaluation = found[wanted]
    evaluation.step = wanted if in_job else None
    return evaluation


def _events(client: Client, job_id: str) -> list[EventView]:
    kept: list[EventView] = []
    after = 0
    while True:
        page = client.events(job_id, after=after)
        kept += [e for e in page.events if e.type in ("rollout.completed", "rollout.failed", "eval.completed")]
        if not page.more or not page.events:
            return kept
        after = page.events[-1].seq


def _add(evaluation: Evaluation, type: str, data: dict[str, Any]) -> None:
    seed = int(data["seed"])
    if type == "rollout.failed":
        evaluation.failed.add(seed)
        return
    evaluation.failed.discard(seed)
    evaluation.rewards[seed] = SeedReward(
        seed=seed,
        reward=float(data["reward"]),
        outcome=str(data.get("outcome") or "ok"),
        calls=int(data.get("calls") or 0),
        tokens=int(data.get("completion_tokens") or 0),
        seconds=float(data.get("seconds") or 0),
        rollout=str(data["rollout_id"]),
    )
