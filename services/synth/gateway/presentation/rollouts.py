"""A rollout's events in the API's shape, and the rollout's use in training, by pure functions."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import cast

from synth.api.rollouts import (
    DropReason,
    GroupMember,
    RolloutMode,
    RolloutOutcome,
    RolloutState,
    RolloutSummary,
    RolloutTraining,
)
from synth.bus.recorded import Recorded
from synth.events import RolloutCompleted, RolloutFailed
from synth.transcripts.batch_header import BatchMeta, RolloutMeta


def rollout_view(recorded: Recorded, reward: float | None) -> RolloutSummary:
    """Return a `rollout.completed` or `rollout.failed` as one line. reward: the trained reward; None: none yet."""
    event = recorded.event
    assert isinstance(event, RolloutCompleted | RolloutFailed)
    done = event if isinstance(event, RolloutCompleted) else None
    outcome = done.outcome if done else "late" if isinstance(event, RolloutFailed) and event.late else "failed"
    return RolloutSummary(
        id=event.rollout_id,
        job_id=recorded.key,
        mode=cast(RolloutMode, event.mode),
        iteration=event.iteration,
        index=event.index,
        group=event.group,
        seed=event.seed,
        outcome=cast(RolloutOutcome, outcome),
        reward=reward,
        environment=done.reward if done else None,
        completion_tokens=done.completion_tokens if done else None,
        calls=done.calls if done else None,
        versions=done.versions if done and done.versions[0] >= 0 else None,
        seconds=done.seconds if done else None,
        tries=event.tries,
        problem=event.problem if isinstance(event, RolloutFailed) else None,
        ended_at=recorded.time,
        seq=recorded.seq,
    )


def group_members(members: Mapping[int, RolloutSummary]) -> list[GroupMember]:
    """Return the rollouts of a group, for people to compare."""
    return [GroupMember(id=m.id, outcome=m.outcome, reward=m.reward) for m in members.values()]


def training_view(
    rollout: RolloutSummary,
    members: Mapping[int, RolloutSummary],
    *,
    batched: bool,
    batch: BatchMeta | None,
    oldest_version: int,
    step: int,
) -> RolloutTraining:
    """Return how training used a rollout of mode "train".

    batched: its iteration's batch is announced. batch: the batch's metadata; None if its blob is gone. oldest_version:
    the oldest policy version that its step trains. step: the last step that the job's trainer has done.
    """
    if rollout.outcome in ("failed", "late"):
        return RolloutTraining(state="dropped", reason=cast(DropReason, rollout.outcome), trained_tokens=0)
    if not batched:
        return RolloutTraining(state="waiting", note="its iteration is not batched yet")
    state: RolloutState = "trained" if step >= rollout.iteration else "batched"
    if batch is None:
        return RolloutTraining(state=state, note="the batch has expired, and with it the advantage")
    meta = next((r for r in batch.rollouts if r.rollout_id == rollout.id), None)
    if meta is None or meta.advantage is None:
        return RolloutTraining(state="dropped", reason=_why_not_in_batch(members.values()), trained_tokens=0)
    return _in_batch(meta, meta.advantage, state, oldest_version)


def _why_not_in_batch(members: Collection[RolloutSummary]) -> DropReason:
    if any(m.outcome == "failed" for m in members):
        return "sibling_failed"
    # A group is used whole or dropped: if a judge's answer was unreadable, its rewards cannot be compared.
    played = [m for m in members if m.outcome != "late"]
    return "unscored" if any(m.reward is None for m in played) else "no_signal"


def _in_batch(meta: RolloutMeta, advantage: float, state: RolloutState, oldest_version: int) -> RolloutTraining:
    # Repeat the trainer's rules: a sequence with a token that is too old, or with an advantage of 0, is not trained.
    sampled = [
        (tokens, version) for tokens, version in zip(meta.sampled_tokens, meta.oldest_versions, strict=True) if tokens
    ]
    fresh = [tokens for tokens, version in sampled if version >= oldest_version]
    reason: DropReason | None = None
    if not sampled:
        reason = "nothing_sampled"
    elif not fresh:
        reason = "too_old"
    elif advantage == 0:
        reason = "mean_reward"
    return RolloutTraining(
        state=state if reason is None else "dropped",
        reason=reason,
        advantage=advantage,
        trained_tokens=sum(fresh) if reason is None else 0,
        sequences=len(meta.sampled_tokens),
        sequences_too_old=len(sampled) - len(fresh),
    )
