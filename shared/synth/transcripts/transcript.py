"""A rollout's transcript: the calls of its last try as text, and the answer of its task app."""

from __future__ import annotations

from typing import Any

import msgspec


class RecordedChat(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One recorded chat call as text.

    continues: the index of the earlier call of its rollout whose conversation it continues; None: it begins a new one.
    kept: how many messages of that conversation, its reply included, come first. messages: the messages after them.
    tools: the offered tools, if they differ from the call before.
    """

    continues: int | None = None
    kept: int = 0
    messages: list[Any] = []
    tools: list[Any] | None = None
    reply: Any = None


class TranscriptTurn(RecordedChat, frozen=True, kw_only=True, omit_defaults=True):
    """One call of the model in a transcript.

    finish_reason: "stop", "length" or "abort". malformed_call: whether the reply has a tool call that cannot be read.
    images_dropped: how many images of its messages the model was not shown.
    prompt_tokens, sampled_tokens: of this call; tokens that the engine forced are not counted. versions: of the policy,
    the oldest and the newest that sampled it.
    """

    finish_reason: str = ""
    malformed_call: bool = False
    images_dropped: int = 0
    prompt_tokens: int = 0
    sampled_tokens: int = 0
    versions: tuple[int, int] | None = None


class TranscriptStep(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One step of the environment, as its task app answered it. after_call: how many calls of the model came before."""

    obs: Any = None
    tool_calls: Any = None
    reward: float | None = None
    done: bool = False
    truncated: bool = False
    info: Any = None
    after_call: int | None = None


class TaskAppAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The task app's answer. status: its HTTP status, 0: none came. body: of an answer that is no rollout.

    steps: of all its trajectories. final, metrics: as it sent them. aborted: it reports that the policy failed.
    """

    status: int = 0
    body: Any = None
    steps: list[TranscriptStep] = []
    final: Any = None
    metrics: Any = None
    aborted: bool = False


class Transcript(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The last try of a rollout. answer: None if the try was cut off before an answer.

    rewards: the environment's reward for each turn, whose sum is the environment's reward; [] if it earned none. limit:
    0: the transcript is whole.

    cut_values: how many values were shortened to fit into `limit` bytes; each states how much it lacks. turns_left_out,
    steps_left_out: from the middle, if there were too many.
    """

    turns: list[TranscriptTurn] = []
    answer: TaskAppAnswer | None = None
    rewards: list[float] = []
    limit: int = 0
    cut_values: int = 0
    turns_left_out: int = 0
    steps_left_out: int = 0
