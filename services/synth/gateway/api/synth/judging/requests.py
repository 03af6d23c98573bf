"""The published request to judge a trace, as typed fields, and the conversion of its trace to a transcript."""

from __future__ import annotations

from typing import Any, cast

from pydantic import BaseModel, ConfigDict, Field

from synth.errors import Problem
from synth.judging.settings import MAX_CONCURRENCY, MAX_TIMEOUT_S, MIN_TIMEOUT_S
from synth.transcripts.plain import to_plain
from synth.transcripts.transcript import TaskAppAnswer, Transcript, TranscriptStep, TranscriptTurn

#: The keys that only events of a version 3 trace have, by the kind of the event.
_CALL_KEYS = ("call_records", "model_name")
_ENVIRONMENT_KEYS = ("system_state_after", "terminated")


class _Open(BaseModel):
    """A body that may have more fields than the gateway reads."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False)


class JudgedTaskApp(_Open):
    """The task app of a trace."""

    id: str
    base_url: str | None = None


class JudgeTrace(_Open):
    """The trace to judge. event_history: events of a version 3 trace, or steps of the environment."""

    event_history: list[dict[str, Any]] = Field(default_factory=list[dict[str, Any]])
    markov_blanket_message_history: list[Any] = Field(default_factory=list[Any])
    metadata: dict[str, Any] = Field(default_factory=dict[str, Any])


class ScoreOptions(_Open):
    """The judge and its options."""

    provider: str | None = None
    model: str | None = None
    rubric_id: str | None = None
    event: bool = True
    outcome: bool = True
    timeout_s: float | None = Field(default=None, ge=MIN_TIMEOUT_S, le=MAX_TIMEOUT_S)
    max_concurrency: int | None = Field(default=None, ge=1, le=MAX_CONCURRENCY)
    rubric_overrides: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None


class ScoreRequest(_Open):
    """The body of `POST /judge/v1/score`."""

    policy_name: str
    task_app: JudgedTaskApp
    trace: JudgeTrace
    options: ScoreOptions = Field(default_factory=ScoreOptions)
    rubric: dict[str, Any] | None = None


def transcript_of(trace: JudgeTrace) -> Transcript | Problem:
    """Return the trace as a transcript of its calls of the model and its steps; a `Problem` if it has neither."""
    turns: list[TranscriptTurn] = []
    steps: list[TranscriptStep] = []
    for event in trace.event_history:
        if any(key in event for key in _CALL_KEYS):
            turns += _turns(event)
        elif any(key in event for key in _ENVIRONMENT_KEYS):
            steps.append(_environment(event, after_call=len(turns)))
        elif "observation" in event or "reward" in event or "tool_calls" in event:
            steps.append(_step(event, after_call=len(turns)))
        elif "actions" in event:
            steps.append(TranscriptStep(tool_calls=to_plain(event["actions"]), after_call=len(turns) or None))
    if not turns and not steps:
        return Problem(
            what="the trace has no events",
            expected="calls of a model (`call_records`), or steps such as {observation, tool_calls, reward}",
            where="trace.event_history",
        )
    context = {
        "messages": [_message(message) for message in trace.markov_blanket_message_history],
        "metadata": to_plain(trace.metadata),
    }
    context = {name: value for name, value in context.items() if value}
    return Transcript(turns=turns, answer=TaskAppAnswer(steps=steps, body=context or None))


def _turns(event: dict[str, Any]) -> list[TranscriptTurn]:
    """Return the calls that a model's event records, each with its whole conversation."""
    records = event.get("call_records")
    results: list[TranscriptTurn] = []
    for record in cast(list[Any], records) if isinstance(records, list) else []:
        if not isinstance(record, dict):
            continue
        call = cast(dict[str, Any], record)
        messages = [_message(m) for m in call.get("input_messages") or []]
        if not messages and call.get("input_text"):
            messages = [{"role": "user", "content": to_plain(call["input_text"])}]
        results.append(TranscriptTurn(messages=messages, reply=_reply(call)))
    return results


def _reply(call: dict[str, Any]) -> dict[str, Any]:
    said = [_message(m) for m in call.get("output_messages") or []]
    reply = dict(said[-1]) if said else {"role": "assistant", "content": to_plain(call.get("output_text"))}
    calls = call.get("output_tool_calls")
    if isinstance(calls, list) and calls and "tool_calls" not in reply:
        reply["tool_calls"] = [
            {"name": tool.get("name"), "arguments": to_plain(tool.get("arguments_json"))}
            for tool in cast(list[Any], calls)
            if isinstance(tool, dict)
        ]
    return reply


def _message(message: Any) -> Any:
    """Return a message of a trace, with its parts joined if all of them are text."""
    if not isinstance(message, dict) or not isinstance(message.get("parts"), list):
        return to_plain(message)
    fields = cast(dict[str, Any], message)
    parts = [part for part in cast(list[Any], fields["parts"]) if isinstance(part, dict)]
    texts = [part["text"] for part in parts if isinstance(part.get("text"), str)]
    content: Any = "".join(texts) if len(texts) == len(parts) else [_without_nulls(part) for part in parts]
    kept = {name: fields[name] for name in ("name", "tool_call_id") if fields.get(name)}
    return to_plain({"role": fields.get("role"), "content": content, **kept})


def _environment(event: dict[str, Any], *, after_call: int) -> TranscriptStep:
    return TranscriptStep(
        obs=to_plain(event.get("system_state_after")),
        reward=_number(event.get("reward")),
        done=bool(event.get("terminated")),
        truncated=bool(event.get("truncated")),
        info=to_plain(event.get("metadata")) or None,
        after_call=after_call or None,
    )


def _step(event: dict[str, Any], *, after_call: int) -> TranscriptStep:
    return TranscriptStep(
        obs=to_plain(event.get("observation")),
        tool_calls=to_plain(event.get("tool_calls")) or None,
        reward=_number(event.get("reward")),
        done=bool(event.get("done")),
        truncated=bool(event.get("truncated")),
        info=to_plain(event.get("info")) or None,
        after_call=after_call or None,
    )


def _number(value: Any) -> float | None:
    try:
        return float(value) if isinstance(value, int | float) else None
    except OverflowError:
        return None  # an integer of more than 308 digits


def _without_nulls(part: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in part.items() if value not in (None, {}, [])}
