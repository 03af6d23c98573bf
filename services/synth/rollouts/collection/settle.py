"""The result of one try of a rollout: its score and transcript, from the task app's answer and the records."""

from __future__ import annotations

from dataclasses import dataclass, replace

from synth.methods.rewards import RewardSettings
from synth.rollouts.collection.transcript import transcript_to_bytes
from synth.rollouts.rewards.scoring import EnvironmentFailed, Rewarded, TaskAppReply, score
from synth.runtime.off_loop import INLINE_BYTES
from synth.trajectories import CompletionRecord
from synth.transcripts.shorten import json_size, shorten


@dataclass(frozen=True, kw_only=True)
class SettleRules:
    """The rules that settle the tries of a job.

    url: the address of its task app. failure_reward: the reward of a try that the policy failed. transcript_bytes: the
    limit of each transcript.
    """

    url: str
    failure_reward: float
    rewards: RewardSettings
    transcript_bytes: int


@dataclass(frozen=True)
class SettledTry:
    """A score and a transcript. traced: whether the transcript is whole."""

    scored: Rewarded | EnvironmentFailed
    transcript: bytes
    traced: bool


def settle(reply: TaskAppReply, records: list[CompletionRecord], rules: SettleRules, traced: bool) -> SettledTry:
    """Score a try and write its transcript. traced: whether the transcript is kept whole if the try counts.

    It runs in a worker process if the answer is large. Therefore the details that the app adds to its reward are kept
    only up to a size that costs the event loop nothing: like values of a transcript, larger ones are shortened and
    marked as shortened.
    """
    reply = reply.read()
    scored = score(reply, records, url=rules.url, failure_reward=rules.failure_reward, rewards=rules.rewards)
    traced = traced and isinstance(scored, Rewarded)
    transcript = transcript_to_bytes(
        records,
        reply,
        rewards=scored.sources.environment if isinstance(scored, Rewarded) else [],
        limit=None if traced else rules.transcript_bytes,
    )
    if isinstance(scored, Rewarded) and json_size(scored.info) > INLINE_BYTES:
        scored = replace(scored, info={name: shorten(value, INLINE_BYTES) for name, value in scored.info.items()})
    return SettledTry(scored, transcript, traced)
