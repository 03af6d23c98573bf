"""A rollout that was played by hand, as a person and as a program reads it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

from synth.cli.play.models import Body
from synth.cli.play.relay import Call
from synth.cli.play.rollout import Played
from synth.cli.tui.output import number
from synth.cli.tui.rollout.lines import Line
from synth.cli.tui.rollout.messages import message_lines, tools_lines, value_text
from synth.taskapp.contract import Step
from synth.transcripts.plain import to_plain
from synth.transcripts.transcript import TaskAppAnswer, Transcript, TranscriptStep, TranscriptTurn


def transcript_of(calls: Sequence[Call], steps: Sequence[Step]) -> Transcript:
    """Return the rollout as the platform keeps one: each message once, in the turn in which it is new."""
    turns: list[TranscriptTurn] = []
    for n, call in enumerate(calls):
        usage = cast(Body, call.completion.get("usage") or {})
        reason = str(call.completion["choices"][0].get("finish_reason") or "stop")
        before = calls[n - 1].asked.get("tools") if n else None
        turns.append(
            _new_in(
                call.asked,
                calls[:n],
                tools=to_plain(call.asked.get("tools") or []) if call.asked.get("tools") != before else None,
                reply=to_plain(call.reply),
                finish_reason="length" if reason == "length" else "stop",
                prompt_tokens=int(usage.get("prompt_tokens") or 0),
                sampled_tokens=int(usage.get("completion_tokens") or 0),
            )
        )
    answer = TaskAppAnswer(
        status=200,
        steps=[
            TranscriptStep(
                obs=to_plain(step.obs),
                tool_calls=to_plain(step.tool_calls) or None,
                reward=step.reward,
                done=step.done,
                truncated=bool(step.truncated),
                info=to_plain(_info(step)) or None,
                after_call=step.after_call,
            )
            for step in steps
        ],
    )
    return Transcript(turns=turns, answer=answer)


def unheard(request: Body, calls: Sequence[Call]) -> Iterator[Line]:
    """Yield the parts that the player has not read yet: the messages since the last call, and at first the tools."""
    for message in _new_in(request, calls).messages:
        yield from message_lines(message)
    if not calls:
        yield from tools_lines(request.get("tools"))


def outcome(played: Played) -> Iterator[Line]:
    """Yield the outcome: the app's details, the reward or the policy's failure, and the app's errors."""
    yield "outcome", None
    if played.details:
        rest = {key: value for key, value in played.details.items() if key != "policy_failure"}
        if rest:
            yield "details", value_text(to_plain(rest))
    if played.policy_failure is not None:
        failure = played.policy_failure
        yield "reward", f"none: the policy failed ({failure.get('code')}: {failure.get('message')})"
        yield "note", "in a job it earns failure_reward, and is not tried again"
    elif played.reward is not None:
        yield "reward", number(played.reward)
    for problem in played.problems:
        yield "error", f"{problem.what}; expected {problem.expected}"


def as_json(played: Played | None, calls: Sequence[Call], *, app: str, seed: int, model: str | None) -> Body:
    """Return the rollout as data, with every request and every reply."""
    steps = [{**step.model_dump(exclude={"info"}), "info": _info(step)} for step in played.steps] if played else []
    return {
        "app": app,
        "seed": seed,
        "model": model,
        "reward": played.reward if played else None,
        "policy_failure": played.policy_failure if played else None,
        "calls": [
            {
                "messages": call.messages,
                "tools": call.asked.get("tools"),
                "reply": call.reply,
                "finish_reason": call.completion["choices"][0].get("finish_reason"),
                "usage": call.completion.get("usage"),
                "seconds": round(call.seconds, 3),
            }
            for call in calls
        ],
        "steps": steps,
        "details": played.details if played else {},
    }


def _new_in(request: Body, calls: Sequence[Call], **fields: Any) -> TranscriptTurn:
    """Return the turn of this request with the messages that no earlier conversation begins with."""
    messages = Call(request, {}, 0.0).messages
    kept = [_common([*call.messages, call.reply], messages) for call in calls]

    def closeness(n: int) -> tuple[int, bool, int]:
        # Of calls that share as much, the one whose reply it answers, the latest of them; else the first.
        whole = kept[n] == len(calls[n].messages) + 1
        return kept[n], whole, n if whole else -n

    best = max(range(len(calls)), key=closeness, default=None)
    if best is None or not kept[best]:
        return TranscriptTurn(messages=to_plain(messages), **fields)
    return TranscriptTurn(continues=best, kept=kept[best], messages=to_plain(messages[kept[best] :]), **fields)


def _common(earlier: Sequence[Body], messages: Sequence[Body]) -> int:
    """Return the number of equal messages at the beginning of both."""
    pairs = zip(earlier, messages, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if _said(a) != _said(b)), min(len(earlier), len(messages)))


def _said(message: Body) -> tuple[Any, ...]:
    """Return the part of a message that the policy sees again, without the empty fields that clients add."""
    calls = cast(list[Body], message.get("tool_calls") or [])
    return message.get("role"), message.get("content") or "", [call.get("function") for call in calls]


def _info(step: Step) -> Body:
    """Return the app's info on a step without `meta`, whose address holds an expired credential."""
    return {key: value for key, value in (step.info or {}).items() if key != "meta"}
