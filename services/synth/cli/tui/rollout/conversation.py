"""The conversation of a rollout, turn by turn, with each step of the environment behind the turn that it follows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

from synth.cli.tui.output import number
from synth.cli.tui.rollout.lines import Line
from synth.cli.tui.rollout.messages import call_text, message_lines, tools_lines, value_text
from synth.transcripts.transcript import Transcript, TranscriptStep, TranscriptTurn

_ENDED = {"length": "the reply was cut off at the token limit", "abort": "the reply was broken off"}


def conversation(t: Transcript) -> Iterator[Line]:
    """Yield the turns of a transcript with their steps, and a note on the omitted ones."""
    steps = list(t.answer.steps) if t.answer else []
    placed = _placed(t, steps)
    half = len(t.turns) - len(t.turns) // 2
    #: Messages of the conversation that each turn ends with, its reply among them.
    lengths: dict[int, int] = {}
    for n, turn in enumerate(t.turns):
        if t.turns_left_out and n == half:
            yield "cut", f"{count(t.turns_left_out, 'turn')} left out"
        shown = n + 1 + (t.turns_left_out if n >= half else 0)
        yield _heading(turn, shown), None
        yield from _goes_on(turn, shown, lengths)
        yield from _said(turn)
        lengths[shown] = turn.kept + len(_list(turn.messages)) + 1
        calls = [call_text(c) for c in _list(turn.reply.get("tool_calls") if isinstance(turn.reply, dict) else ())]
        for k, step in placed.get(shown, []):
            yield from _step(step, k, said=calls)
    if rest := placed.get(0, []):
        yield "steps of the environment", None
        for k, step in rest:
            yield from _step(step, k)
    if t.steps_left_out:
        yield "cut", f"{count(t.steps_left_out, 'step')} left out of the middle"


def count(n: int, word: str) -> str:
    """Return a number of things, as `1 token` and `2 tokens`."""
    return f"{n} {word}{'' if n == 1 else 's'}"


def versions_text(versions: tuple[int, int] | None) -> str:
    """Return the policy versions that sampled something: `3`, or `2-3`."""
    if versions is None:
        return "-"
    oldest, newest = versions
    return str(oldest) if oldest == newest else f"{oldest}-{newest}"


def _placed(t: Transcript, steps: list[TranscriptStep]) -> dict[int, list[tuple[int, TranscriptStep]]]:
    """Return the steps, with their numbers, by the turn that each follows; 0: after all of them.

    If the app does not name the turn of a step, and has one step for each call, they are matched in order.
    """
    calls = len(t.turns) + t.turns_left_out
    one_each = len(steps) + t.steps_left_out == calls and not t.steps_left_out
    half = len(steps) - len(steps) // 2
    placed: dict[int, list[tuple[int, TranscriptStep]]] = {}
    for n, step in enumerate(steps):
        shown = n + 1 + (t.steps_left_out if n >= half else 0)
        turn = step.after_call if step.after_call is not None else shown if one_each else 0
        placed.setdefault(turn if turn <= calls else 0, []).append((shown, step))
    if t.turns_left_out:
        kept = {*range(1, len(t.turns) - len(t.turns) // 2 + 1), *range(calls - len(t.turns) // 2 + 1, calls + 1)}
        for turn in [turn for turn in placed if turn and turn not in kept]:
            placed.setdefault(0, []).extend(placed.pop(turn))
    return placed


def _heading(turn: TranscriptTurn, n: int) -> str:
    figures = [f"policy {versions_text(turn.versions)}"] if turn.versions else []
    if turn.prompt_tokens or turn.sampled_tokens:
        figures.append(f"{turn.prompt_tokens} + {count(turn.sampled_tokens, 'token')}")
    return f"turn {n}" + (f"  ({', '.join(figures)})" if figures else "")


def _goes_on(turn: TranscriptTurn, n: int, lengths: dict[int, int]) -> Iterator[Line]:
    """Yield notes on how the turn continues an earlier one, if not the whole one before. lengths: of conversations."""
    if turn.continues is None:
        if n > 1:
            yield "note", "a conversation of its own: it goes on from no earlier turn"
        return
    earlier = turn.continues + 1
    whole = not 0 < turn.kept < lengths.get(earlier, 0)
    if earlier != n - 1 or not whole:
        end = "" if whole else " and leaves the rest of it out: in training, another sequence begins here"
        yield "note", f"goes on from {count(turn.kept, 'message')} of turn {earlier}{end}"


def _said(turn: TranscriptTurn) -> Iterator[Line]:
    for message in _list(turn.messages):
        yield from message_lines(message)
    if turn.images_dropped:
        yield "note", f"{count(turn.images_dropped, 'image')} of these messages dropped: the model was not shown them"
    yield from tools_lines(turn.tools)
    yield from message_lines(turn.reply)
    if turn.malformed_call:
        yield "note", "the reply has a tool call that cannot be read"
    if turn.finish_reason not in ("", "stop"):
        yield "note", _ENDED.get(turn.finish_reason, turn.finish_reason)


def _step(step: TranscriptStep, n: int, *, said: Sequence[str] = ()) -> Iterator[Line]:
    """Yield the lines of a step. said: the calls of its turn, which the step does not repeat if it played the same."""
    reward = "no reward" if step.reward is None else f"reward {number(step.reward)}"
    yield f"step {n}", reward + (", done" if step.done else "") + (", truncated" if step.truncated else "")
    played = [call_text(call) for call in _list(step.tool_calls or ())]
    for text in played if played != list(said) else ():
        yield "  played", text
    if step.obs is not None:
        yield "  obs", value_text(step.obs)
    if step.info:
        yield "  info", value_text(step.info)


def _list(value: Any) -> list[Any]:
    """Return a foreign value that should be a list; any other value becomes a list of one."""
    if isinstance(value, list | tuple):
        return list(cast(Sequence[Any], value))
    return [value] if value else []
