"""A trace in the shape that the published clients store: a session of version 3.

A message history in the order of the conversation, each message once, and an event for each call of the model and each
step of the environment. The times of messages are not recorded, so all of them have the time of the session's end; the
order of the list is their order, and their turn is in `message_time`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from synth.api.traces import TraceDetail
from synth.traces.facts import as_object, episode_facts, judge_scores
from synth.traces.messages import message_type, stored_content
from synth.transcripts.transcript import Transcript, TranscriptStep, TranscriptTurn

Object = dict[str, Any]


def v3_trace(trace: TraceDetail) -> Object:
    """Return the trace with its rewards, under the names of the clients' tables: `outcome_rewards`, `event_rewards`.

    It needs the transcript.
    """
    assert trace.transcript is not None
    at = trace.created_at.timestamp()
    events, rewards = _events(trace, trace.transcript, at)
    facts = episode_facts(trace, trace.transcript)
    scores = judge_scores(trace, trace.review)
    outcome = {
        "total_reward": trace.environment,
        "achievements_count": facts.achievements or 0,
        "total_steps": facts.steps,
        "reward_metadata": {"reward": trace.reward, "judge_scores": scores, "outcome": trace.outcome},
    }
    return {
        "session_id": trace.id,
        "created_at": trace.started_at.isoformat(),
        "session_time_steps": [],
        "event_history": events,
        "markov_blanket_message_history": list(_messages(trace.transcript, at)),
        "metadata": {
            "task_id": facts.task_id,
            "task_split": facts.split,
            "env_name": trace.env_name,
            "policy_name": trace.policy_name,
            "model": trace.model,
            "seed": trace.seed,
            "judge_scores": scores,
            "total_reward": trace.reward,
            "job_id": trace.job_id,
            "mode": trace.mode,
            "iteration": trace.iteration,
            "outcome": trace.outcome,
        },
        "outcome_rewards": [outcome],
        "event_rewards": rewards,
    }


def _messages(transcript: Transcript, at: float) -> Iterator[Object]:
    for n, turn in enumerate(transcript.turns):
        ended = {"finish_reason": turn.finish_reason} if turn.finish_reason else {}
        for place, message in enumerate(map(as_object, [*turn.messages, turn.reply])):
            yield {
                "content": stored_content(message),
                "message_type": message_type(message),
                "time_record": {"event_time": at, "message_time": n},
                "metadata": {"turn": n} | (ended if place == len(turn.messages) else {}),
            }


def _events(trace: TraceDetail, transcript: Transcript, at: float) -> tuple[list[Object], list[Object]]:
    """Return the events, and the rewards of events that have one; `event` is the index of the event."""
    steps = list(transcript.answer.steps) if transcript.answer else []
    one_each = len(steps) == len(transcript.turns)
    placed: dict[int, list[TranscriptStep]] = {}
    for n, step in enumerate(steps, start=1):
        after = step.after_call if step.after_call is not None else n if one_each else len(transcript.turns)
        placed.setdefault(min(after, len(transcript.turns)), []).append(step)
    events: list[Object] = []
    rewards: list[Object] = []
    for n in range(len(transcript.turns) + 1):
        if n:
            events.append(_call_event(trace, transcript.turns[n - 1], n - 1, at))
            if trace.review is not None and n <= len(trace.review.events):
                review = trace.review.events[n - 1]
                reward = {"reward_value": review.total, "reward_type": "evaluator", "key": "judge", "source": "judge"}
                rewards.append({"event": len(events) - 1, "turn_number": n - 1, "annotation": review.summary} | reward)
        for step in placed.get(n, []):
            events.append(_step_event(step, at))
            if step.reward is not None:
                reward = {"reward_value": step.reward, "reward_type": "shaped", "source": "environment"}
                rewards.append({"event": len(events) - 1, "turn_number": max(n - 1, 0)} | reward)
    return events, rewards


def _call_event(trace: TraceDetail, turn: TranscriptTurn, n: int, at: float) -> Object:
    return {
        "system_instance_id": "policy",
        "time_record": {"event_time": at, "message_time": n},
        "metadata": {"turn": n},
        "model_name": trace.model or "",
        "provider": "synth",
        "input_tokens": turn.prompt_tokens,
        "output_tokens": turn.sampled_tokens,
        "total_tokens": turn.prompt_tokens + turn.sampled_tokens,
        "call_records": [
            {
                "call_id": f"{trace.id}_{n}",
                "api_type": "chat_completions",
                "provider": "synth",
                "model_name": trace.model or "",
                "input_messages": turn.messages,
                "output_messages": [turn.reply],
                "output_text": as_object(turn.reply).get("content"),
                "finish_reason": turn.finish_reason,
                "continues": turn.continues,
                "kept": turn.kept,
                "tools": turn.tools,
            }
        ],
    }


def _step_event(step: TranscriptStep, at: float) -> Object:
    return {
        "system_instance_id": "environment",
        "time_record": {"event_time": at, "message_time": None},
        "metadata": as_object(step.info),
        "reward": step.reward or 0.0,
        "terminated": step.done and not step.truncated,
        "truncated": step.truncated,
        "system_state_after": as_object(step.obs) or {"obs": step.obs},
    }
