"""One rollout as a person reads it: its outcome, what became of it, then turn by turn what was said and done."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, cast

from synth.api.rollouts import RolloutDetail, RolloutTraining
from synth.cli.tui.output import is_terminal, number, out, print_line, size
from synth.cli.tui.rollout.listing import outcome_text, short_id, versions_text
from synth.cli.tui.rollout.plain_text import printable
from synth.errors import Problem
from synth.transcripts.transcript import TaskAppAnswer, Transcript, TranscriptStep, TranscriptTurn

_LABEL = 10
#: A JSON text of up to so many characters stands on one line.
_ONE_LINE = 100
_STYLES = {"error": "red", "thinks": "dim", "reward": "bold", "dropped": "yellow", "note": "dim", "cut": "yellow"}
_DROPPED = {
    "failed": "the environment failed all of its tries; its group is dropped with it",
    "late": "it was cut off at its group's deadline; the group goes on without it",
    "sibling_failed": "another rollout of its group failed, and the group is dropped with it",
    "no_signal": "all rewards of its group are equal, so there is nothing to compare",
    "too_old": "a token of each of its sequences is older than max_staleness allows",
    "mean_reward": "its reward is the mean of its group, so its advantage is 0",
    "nothing_sampled": "the policy sampled no token of it by itself",
}
_MESSAGE_LABELS = {"assistant": "reply", "developer": "system", "function": "tool"}

#: A label and its text; without a text, a heading.
Line = tuple[str, str | None]


def print_rollout(rollout: RolloutDetail) -> None:
    """Print a rollout: labels at the left, texts wrapped beside them; off a terminal, lines that are never cut."""
    if not is_terminal():
        for label, text in lines(rollout):
            if text is None:
                print_line(f"\n{label}")
                continue
            for n, line in enumerate(text.split("\n")):
                print_line(f"{label if n == 0 else '':<{_LABEL}} {line}".rstrip())
        return
    from rich.table import Table
    from rich.text import Text

    for label, text in lines(rollout):
        if text is None:
            out().print(Text(f"\n{label}", style="bold cyan"))
            continue
        grid = Table.grid(padding=(0, 1, 0, 0))
        grid.add_column(width=_LABEL, no_wrap=True)
        grid.add_column(overflow="fold")
        grid.add_row(Text(label, style=_STYLES.get(label, "cyan")), Text(text, style=_STYLES.get(label, "")))
        out().print(grid)


def lines(rollout: RolloutDetail) -> Iterator[Line]:
    """All that there is to say of a rollout, in the order in which it is read."""
    yield from _outcome(rollout)
    if rollout.transcript is None:
        yield "note", rollout.transcript_note or "there is no transcript"
        return
    yield from _transcript(rollout.transcript)


def _outcome(r: RolloutDetail) -> Iterator[Line]:
    purpose = f"iteration {r.iteration}" if r.mode == "train" else "evaluation"
    if r.mode == "eval" and r.iteration:
        purpose = f"evaluation of policy version {r.pinned_version}"
    yield "rollout", f"{short_id(r.id, r.job_id)} of {r.job_id}, {purpose}, seed {r.seed}"
    reward = "none" if r.reward is None else number(r.reward)
    yield "reward", reward + ("" if r.outcome == "ok" else f" ({outcome_text(r)})")
    if r.outcome == "policy_failure" and (why := _policy_failure(r.transcript)):
        yield "note", why
    if r.problem is not None:
        yield "error", _problem(r.problem)
    if r.completion_tokens is not None:
        sampled = f"{_count(r.completion_tokens, 'token')} in {_count(r.calls or 0, 'call')}"
        sampled += f" by policy version {versions_text(r.versions)}" if r.versions else ""
        yield "sampled", f"{sampled}, {r.seconds or 0.0:.1f} s"
    yield from _tries(r)
    if r.mode == "train" and r.training is not None:
        label, text = _training(r.training)
        yield label, text
    others = [member for member in r.group_members if member.id != r.id]
    if others:
        shown = [f"{short_id(m.id, r.job_id)} {'-' if m.reward is None else number(m.reward)}" for m in others]
        yield "group", f"{_count(len(others), 'other')}: " + ", ".join(shown)


def _policy_failure(transcript: Transcript | None) -> str:
    """Why an error of the task app is not the environment's; "" where the app itself says that the policy failed."""
    if transcript is None or transcript.answer is None or transcript.answer.status == 200:
        return ""
    if transcript.turns and transcript.turns[-1].finish_reason == "length":
        return "the error below counts as the policy's: its last reply was cut off at the token limit"
    if transcript.turns and transcript.turns[-1].malformed_call:
        return "the error below counts as the policy's: its last reply has a tool call that cannot be read"
    return "the error below counts as the policy's: the task app says so"


def _tries(r: RolloutDetail) -> Iterator[Line]:
    if r.tries <= 1 and not r.failed_tries:
        return
    yield "tries", str(r.tries)
    for failed in r.failed_tries:
        times = f"{failed.times} times: " if failed.times > 1 else ""
        yield "error", f"before: {times}{_problem(failed.problem)}"


def _training(t: RolloutTraining) -> tuple[str, str]:
    figures = [] if t.advantage is None else [f"advantage {number(t.advantage)}"]
    if t.trained_tokens is not None and t.state != "dropped":
        figures.append(f"{_count(t.trained_tokens, 'token')} in {_count(t.sequences or 0, 'sequence')}")
    if t.sequences_too_old and t.reason != "too_old":
        figures.append(f"{_count(t.sequences_too_old, 'sequence')} too old to train")
    if t.note:
        figures.append(t.note)
    match t.state:
        case "dropped":
            return "dropped", "; ".join([_DROPPED.get(t.reason or "", t.reason or ""), *figures])
        case "waiting":
            return "training", f"waits; {'; '.join(figures)}"
        case "batched":
            return "training", f"in the batch, not trained yet; {'; '.join(figures)}"
        case "trained":
            return "training", f"trained; {'; '.join(figures)}"


def _transcript(t: Transcript) -> Iterator[Line]:
    steps = list(t.answer.steps) if t.answer else []
    placed = _placed(t, steps)
    half = len(t.turns) - len(t.turns) // 2
    for n, turn in enumerate(t.turns):
        if t.turns_left_out and n == half:
            yield "cut", f"{_count(t.turns_left_out, 'turn')} left out"
        number_shown = n + 1 + (t.turns_left_out if n >= half else 0)
        yield from _turn(turn, number_shown)
        for k, step in placed.get(number_shown, []):
            yield from _step(step, k)
    rest = placed.get(0, [])
    if rest:
        yield "steps of the environment", None
        for k, step in rest:
            yield from _step(step, k)
    if t.steps_left_out:
        yield "cut", f"{_count(t.steps_left_out, 'step')} left out of the middle"
    if t.answer is None:
        yield "answer", None
        yield "note", "none: the rollout was cut off before its task app answered"
    else:
        yield from _answer(t.answer)
    if t.cut_values:
        limit = size(t.limit)
        yield (
            "cut",
            f"{_count(t.cut_values, 'value')} shortened to keep the transcript within {limit} (SYNTH_TRANSCRIPT_BYTES)",
        )


def _placed(t: Transcript, steps: list[TranscriptStep]) -> dict[int, list[tuple[int, TranscriptStep]]]:
    """The steps, with their numbers, by the turn that each stands behind; 0: behind all of them.

    An app that does not say where its steps belong, and has one for each call, means one after the other.
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


def _turn(turn: TranscriptTurn, n: int) -> Iterator[Line]:
    version = f"policy {versions_text(turn.versions)}, " if turn.versions else ""
    yield f"turn {n}  ({version}{turn.prompt_tokens} + {_count(turn.sampled_tokens, 'token')})", None
    if n > 1 and turn.continues is None:
        yield "note", "a conversation of its own: it goes on from no earlier turn"
    elif turn.continues is not None and turn.continues != n - 2:
        yield "note", f"goes on from {_count(turn.kept, 'message')} of turn {turn.continues + 1}"
    for message in cast(list[Any], turn.messages if isinstance(turn.messages, list) else [turn.messages]):
        yield from _message(message)
    if turn.tools:
        yield "tools", ", ".join(_tool(tool) for tool in turn.tools)
    yield from _message(turn.reply)
    if turn.malformed_call:
        yield "note", "the reply has a tool call that cannot be read"
    if turn.finish_reason != "stop":
        ended = {"length": "the reply was cut off at the token limit", "abort": "the reply was broken off"}
        yield "note", ended.get(turn.finish_reason, turn.finish_reason)


def _message(message: Any) -> Iterator[Line]:
    """A message of any shape: what is not one is shown as it is."""
    if message is None:
        return
    if not isinstance(message, dict):
        yield "…", _text(message)
        return
    fields = cast(dict[str, Any], message)
    role = str(fields.get("role") or "…")
    label = _MESSAGE_LABELS.get(role, role)[:_LABEL]
    if reasoning := fields.get("reasoning_content") or fields.get("reasoning"):
        yield "thinks", _text(reasoning)
    content = fields.get("content")
    calls = fields.get("tool_calls")
    if content not in (None, "", []) or not calls:
        yield label, _content(content)
    for call in cast(list[Any], calls if isinstance(calls, list) else [calls] if calls else []):
        yield "calls", _call(call)


def _content(content: Any) -> str:
    if content is None or content == "":
        return "(empty)"
    if not isinstance(content, list):
        return _text(content)
    parts: list[str] = []
    for part in cast(list[Any], content):
        fields = cast(dict[str, Any], part) if isinstance(part, dict) else {}
        parts.append(_text(fields["text"] if isinstance(fields.get("text"), str) else part))
    return "\n".join(parts)


def _call(call: Any) -> str:
    """A tool call as `name(argument=value, …)`."""
    if not isinstance(call, dict):
        return _text(call)
    fields = cast(dict[str, Any], call)
    function = fields.get("function")
    function = cast(dict[str, Any], function) if isinstance(function, dict) else fields
    name = function.get("name") or function.get("tool_name")
    if name is None:
        return _text(call)
    arguments: Any = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return printable(f"{name}({arguments})")
    if not isinstance(arguments, dict):
        return printable(f"{name}({'' if arguments is None else _json(arguments)})")
    given = cast(dict[str, Any], arguments)
    return printable(f"{name}({', '.join(f'{key}={_json(value)}' for key, value in given.items())})")


def _tool(tool: Any) -> str:
    if not isinstance(tool, dict):
        return _text(tool)
    fields = cast(dict[str, Any], tool)
    function = fields.get("function")
    function = cast(dict[str, Any], function) if isinstance(function, dict) else fields
    parameters = function.get("parameters")
    known = cast(dict[str, Any], parameters).get("properties") if isinstance(parameters, dict) else None
    names = ", ".join(cast(dict[str, Any], known)) if isinstance(known, dict) else "…" if known else ""
    return printable(f"{function.get('name', '?')}({names})")


def _step(step: TranscriptStep, n: int) -> Iterator[Line]:
    reward = "no reward" if step.reward is None else f"reward {number(step.reward)}"
    yield f"step {n}", reward + (", done" if step.done else "") + (", truncated" if step.truncated else "")
    for call in cast(list[Any], step.tool_calls if isinstance(step.tool_calls, list) else []):
        yield "  played", _call(call)
    if step.obs is not None:
        yield "  obs", _text(step.obs)
    if step.info:
        yield "  info", _text(step.info)


def _answer(answer: TaskAppAnswer) -> Iterator[Line]:
    yield "answer of the task app", None
    if answer.body is not None:
        status = f"HTTP {answer.status}" if answer.status else "no answer"
        yield "error" if answer.status != 200 else "answer", f"{status}: {_error_text(answer.body)}"
    metrics = cast(dict[str, Any], answer.metrics) if isinstance(answer.metrics, dict) else {}
    scores = [f"{name} {_json(metrics[name])}" for name in _SCORES if metrics.get(name) not in (None, [])]
    if scores:
        yield "reward", ", ".join(scores)
    if answer.aborted:
        yield "aborted", "the task app says that the policy failed"
    if metrics.get("details"):
        yield "details", _text(metrics["details"])
    if answer.metrics is not None and not metrics:
        yield "metrics", _text(answer.metrics)
    if answer.final is not None:
        yield "final", _text(answer.final)


_SCORES = ("outcome_score", "mean_return", "episode_returns", "events_score")


def _error_text(body: Any) -> str:
    """The words of an error, `{"detail": {"error": {"code", "message"}}}`, and what the app sent beside it."""
    if not isinstance(body, dict):
        return _text(body)
    fields = cast(dict[str, Any], body)
    detail = fields.get("detail")
    found: Any = cast(dict[str, Any], detail).get("error") if isinstance(detail, dict) else None
    if not isinstance(found, dict) or "message" not in found:
        return _text(fields)
    error = cast(dict[str, Any], found)
    code = f"{error['code']}: " if error.get("code") else ""
    said = [printable(f"{code}{error['message']}")]
    rest = {name: value for name, value in fields.items() if name not in ("detail", "traceback")}
    trace = fields.get("traceback")
    said += [printable(str(line)) for line in cast(list[Any], trace if isinstance(trace, list) else [])]
    return "\n".join([*said, *([_text(rest)] if rest else [])])


def _text(value: Any) -> str:
    """Any value: a text as it is, JSON on one line where it is short."""
    if isinstance(value, str):
        return printable(value) or "(empty)"
    line = _json(value)
    return printable(line if len(line) <= _ONE_LINE else json.dumps(value, ensure_ascii=False, indent=2))


def _json(value: Any) -> str:
    image = cast(dict[str, Any], value) if isinstance(value, dict) else {}
    if set(image) == {"image", "bytes", "sha256"}:
        return f"[{image['image']}, {size(image['bytes'])}, sha256 {str(image['sha256'])[:12]}]"
    return json.dumps(value, ensure_ascii=False)


def _problem(problem: Problem) -> str:
    return printable(problem.what)


def _count(n: int, word: str) -> str:
    return f"{n} {word}{'' if n == 1 else 's'}"
