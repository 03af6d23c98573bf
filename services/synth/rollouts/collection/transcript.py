"""The transcript of a try, within a size limit: the policy's prompts and replies, and the task app's answer.

An app's answer is not trusted: any field may be missing, have any type, or be as large as the answer may be.
"""

from __future__ import annotations

import math
from typing import Any, TypeVar, cast

import msgspec

from synth.rollouts.rewards.scoring import TaskAppReply
from synth.trajectories import CompletionRecord
from synth.transcripts.plain import to_plain
from synth.transcripts.shorten import json_size, share_out, shorten
from synth.transcripts.transcript import RecordedChat, TaskAppAnswer, Transcript, TranscriptStep, TranscriptTurn

#: The rough size of a turn or a step without its values.
_FRAME_BYTES = 256
_Item = TypeVar("_Item")
_TURN_VALUES = ("messages", "tools", "reply")
_STEP_VALUES = ("obs", "tool_calls", "info")
_ANSWER_VALUES = ("body", "final", "metrics")


def transcript_to_bytes(
    records: list[CompletionRecord], reply: TaskAppReply | None, *, rewards: list[float], limit: int | None
) -> bytes:
    """Return the transcript of a try as JSON, of at most about `limit` bytes; None: whole.

    reply: None if the try was cut off before an answer arrived. rewards: the reward of each turn.
    """
    turns = [_turn(record) for record in records]
    answer = None if reply is None else _answer(reply)
    if limit is None:
        return msgspec.json.encode(Transcript(turns=turns, answer=answer, rewards=rewards))
    # A quarter for the frames: a rollout of very many turns or steps keeps the first and the last of them.
    most = max(2, limit // (4 * _FRAME_BYTES))
    turns, turns_left_out = _ends(turns, most)
    rewards, _ = _ends(rewards, most)
    steps, steps_left_out = _ends(answer.steps if answer else [], most)
    if answer is not None:
        answer = msgspec.structs.replace(answer, steps=steps)
    whole = Transcript(
        turns=turns,
        answer=answer,
        rewards=rewards,
        limit=limit,
        turns_left_out=turns_left_out,
        steps_left_out=steps_left_out,
    )
    return msgspec.json.encode(whole if json_size(whole) <= limit else _cut(whole))


def _turn(record: CompletionRecord) -> TranscriptTurn:
    sampled = record.versions[record.sampled]
    chat = record.chat or RecordedChat()
    return TranscriptTurn(
        continues=chat.continues,
        kept=chat.kept,
        messages=chat.messages,
        tools=chat.tools,
        reply=chat.reply,
        finish_reason=record.finish_reason,
        malformed_call=record.malformed_call,
        images_dropped=record.images_dropped,
        prompt_tokens=len(record.prompt_ids),
        sampled_tokens=len(sampled),
        versions=(int(sampled.min()), int(sampled.max())) if len(sampled) else None,
    )


def _answer(reply: TaskAppReply) -> TaskAppAnswer:
    fields = cast(dict[str, Any], reply.body) if isinstance(reply.body, dict) else {}
    metrics = fields.get("metrics")
    # An error may come with the steps that were played before it.
    trajectories = [t for t in _list(fields.get("trajectories")) if isinstance(t, dict)]
    steps = [_step(step) for t in trajectories for step in _list(t.get("steps")) if isinstance(step, dict)]
    is_rollout = reply.status == 200 and isinstance(metrics, dict)
    body = {k: v for k, v in fields.items() if k != "trajectories"} if fields else reply.body
    return TaskAppAnswer(
        status=reply.status,
        body=None if is_rollout else to_plain(body),
        steps=steps,
        final=next((to_plain(t["final"]) for t in reversed(trajectories) if t.get("final") is not None), None),
        metrics=to_plain(metrics),
        aborted=fields.get("aborted") is True,
    )


def _step(step: dict[str, Any]) -> TranscriptStep:
    after = step.get("after_call")
    return TranscriptStep(
        obs=to_plain(step.get("obs")),
        tool_calls=to_plain(step.get("tool_calls")) or None,
        reward=_finite(step.get("reward")),
        done=step.get("done") is True,
        truncated=step.get("truncated") is True,
        info=to_plain(_own_info(step.get("info"))) or None,
        after_call=after if isinstance(after, int) and not isinstance(after, bool) and 0 <= after < 1 << 31 else None,
    )


def _own_info(info: Any) -> Any:
    """Return the app's info without the model's address, which the app got from us and which is a credential."""
    if not isinstance(info, dict):
        return info
    fields = cast(dict[str, Any], info)
    meta = fields.get("meta")
    if not isinstance(meta, dict) or "inference_url" not in meta:
        return fields
    rest = {name: value for name, value in cast(dict[str, Any], meta).items() if name != "inference_url"}
    return {name: value for name, value in fields.items() if name != "meta"} | ({"meta": rest} if rest else {})


def _cut(whole: Transcript) -> Transcript:
    """Shorten the large values of a transcript, all of them to the same size."""
    answer = whole.answer
    places: list[tuple[msgspec.Struct, str]] = [(turn, name) for turn in whole.turns for name in _TURN_VALUES]
    if answer is not None:
        places += [(step, name) for step in answer.steps for name in _STEP_VALUES]
        places += [(answer, name) for name in _ANSWER_VALUES]
    sizes = [json_size(getattr(owner, name)) for owner, name in places]
    frames = json_size(whole) - sum(sizes)
    new: dict[int, dict[str, Any]] = {}
    cut = 0
    for (owner, name), size, share in zip(places, sizes, share_out(sizes, whole.limit - frames), strict=True):
        if size > share:
            new.setdefault(id(owner), {})[name] = shorten(getattr(owner, name), share)
            cut += 1

    def cut_item(item: _Item) -> _Item:
        changes = new.get(id(item))
        return msgspec.structs.replace(cast(Any, item), **changes) if changes else item

    if answer is not None:
        steps = [cut_item(step) for step in answer.steps]
        answer = msgspec.structs.replace(cut_item(answer), steps=steps)
    turns = [cut_item(turn) for turn in whole.turns]
    return msgspec.structs.replace(whole, turns=turns, answer=answer, cut_values=cut)


def _ends(items: list[_Item], most: int) -> tuple[list[_Item], int]:
    """Return the first and the last items, `most` together, and how many are left out between them."""
    if len(items) <= most:
        return items, 0
    tail = most // 2
    return [*items[: most - tail], *items[len(items) - tail :]], len(items) - most


def _list(value: Any) -> list[Any]:
    return cast(list[Any], value) if isinstance(value, list) else []


def _finite(value: Any) -> float | None:
    if not isinstance(value, int | float) or abs(value) > 1e300 or math.isnan(value):
        return None
    return float(value)
