"""One rollout as a person reads it: its outcome and use, then its turns and steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from synth.api.rollouts import RolloutDetail, RolloutTraining
from synth.cli.tui.output import number, size
from synth.cli.tui.rollout.conversation import conversation, count, versions_text
from synth.cli.tui.rollout.lines import Line, print_lines
from synth.cli.tui.rollout.listing import outcome_text, short_id
from synth.cli.tui.rollout.messages import json_text, value_text
from synth.cli.tui.rollout.pictures import FetchImage
from synth.console.plain_text import printable
from synth.errors import Problem
from synth.transcripts.transcript import TaskAppAnswer, Transcript

_DROPPED = {
    "failed": "the environment failed all of its tries; its group is dropped with it",
    "late": "it was cut off at its group's deadline; the group goes on without it",
    "sibling_failed": "another rollout of its group failed, and the group is dropped with it",
    "unscored": "judges gave no scores for a rollout of its group, which is dropped with it",
    "no_signal": "all rewards of its group are equal, so there is nothing to compare",
    "too_old": "a token of each of its sequences is older than max_staleness allows",
    "mean_reward": "its reward is the mean of its group, so its advantage is 0",
    "nothing_sampled": "the policy sampled no token of it by itself",
}


def print_rollout(rollout: RolloutDetail, fetch: FetchImage | None = None) -> None:
    """Print a rollout. fetch: returns the images to draw; None draws none."""
    print_lines(lines(rollout), fetch)


def lines(rollout: RolloutDetail) -> Iterator[Line]:
    """Yield every line of a rollout, in reading order."""
    yield from _outcome(rollout)
    if rollout.transcript is None:
        yield "note", rollout.transcript_note or "there is no transcript"
        return
    yield from transcript_lines(rollout.transcript)


def _outcome(r: RolloutDetail) -> Iterator[Line]:
    purpose = f"iteration {r.iteration}" if r.mode == "train" else "evaluation"
    if r.mode == "eval" and r.iteration:
        purpose = f"evaluation of policy version {r.pinned_version}"
    yield "rollout", f"{short_id(r.id, r.job_id)} of {r.job_id}, {purpose}, seed {r.seed}"
    reward = "none" if r.reward is None else number(r.reward)
    if r.environment is not None and r.environment != r.reward:
        reward += f" (environment {number(r.environment)})"
    yield "reward", reward + ("" if r.outcome == "ok" else f" ({outcome_text(r)})")
    if r.outcome == "policy_failure" and (why := _policy_failure(r.transcript)):
        yield "note", why
    if r.problem is not None:
        yield "error", _problem(r.problem)
    if r.completion_tokens is not None:
        sampled = f"{count(r.completion_tokens, 'token')} in {count(r.calls or 0, 'call')}"
        sampled += f" by policy version {versions_text(r.versions)}" if r.versions else ""
        yield "sampled", f"{sampled}, {r.seconds or 0.0:.1f} s"
    yield from _tries(r)
    if r.mode == "train" and r.training is not None:
        label, text = _training(r.training)
        yield label, text
    others = [member for member in r.group_members if member.id != r.id]
    if others:
        shown = [f"{short_id(m.id, r.job_id)} {'-' if m.reward is None else number(m.reward)}" for m in others]
        yield "group", f"{count(len(others), 'other')}: " + ", ".join(shown)


def _policy_failure(transcript: Transcript | None) -> str:
    """Return why an error of the task app counts as the policy's; "" if the app's answer has status 200."""
    if transcript is None or transcript.answer is None or transcript.answer.status == 200:
        return ""
    if transcript.turns and transcript.turns[-1].finish_reason == "length":
        return "the error below counts as the policy's: its last reply was cut off at the token limit"
    if transcript.turns and transcript.turns[-1].malformed_call:
        return "the error below counts as the policy's: its last reply has a tool call that cannot be read"
    return "the error below counts as the policy's: the task app reports it so"


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
        figures.append(f"{count(t.trained_tokens, 'token')} in {count(t.sequences or 0, 'sequence')}")
    if t.sequences_too_old and t.reason != "too_old":
        figures.append(f"{count(t.sequences_too_old, 'sequence')} too old to train")
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


def transcript_lines(t: Transcript) -> Iterator[Line]:
    """Yield the conversation, the task app's answer, and a note if a part is missing."""
    yield from conversation(t)
    if t.answer is None:
        yield "answer", None
        yield "note", "none: the rollout was cut off before its task app answered"
    else:
        yield from _answer(t.answer)
    if t.cut_values:
        limit = size(t.limit)
        yield (
            "cut",
            f"{count(t.cut_values, 'value')} shortened to keep the transcript within {limit} (SYNTH_TRANSCRIPT_BYTES)",
        )


def _answer(answer: TaskAppAnswer) -> Iterator[Line]:
    yield "answer of the task app", None
    if answer.body is not None:
        status = f"HTTP {answer.status}" if answer.status else "no answer"
        yield "error" if answer.status != 200 else "answer", f"{status}: {_error_text(answer.body)}"
    metrics = cast(dict[str, Any], answer.metrics) if isinstance(answer.metrics, dict) else {}
    scores = [f"{name} {json_text(metrics[name])}" for name in _SCORES if metrics.get(name) not in (None, [])]
    if scores:
        yield "reward", ", ".join(scores)
    if answer.aborted:
        yield "aborted", "the task app reports that the policy failed"
    if metrics.get("details"):
        yield "details", value_text(metrics["details"])
    if answer.metrics is not None and not metrics:
        yield "metrics", value_text(answer.metrics)
    if answer.final is not None:
        yield "final", value_text(answer.final)


_SCORES = ("outcome_score", "mean_return", "episode_returns", "events_score")


def _error_text(body: Any) -> str:
    """Return the text of an error, `{"detail": {"error": {"code", "message"}}}`, and the app's further fields."""
    if not isinstance(body, dict):
        return value_text(body)
    fields = cast(dict[str, Any], body)
    detail = fields.get("detail")
    nested: Any = cast(dict[str, Any], detail).get("error") if isinstance(detail, dict) else None
    if not isinstance(nested, dict) or "message" not in nested:
        return value_text(fields)
    error = cast(dict[str, Any], nested)
    code = f"{error['code']}: " if error.get("code") else ""
    text = [printable(f"{code}{error['message']}")]
    rest = {name: value for name, value in fields.items() if name not in ("detail", "traceback")}
    trace = fields.get("traceback")
    text += [printable(str(line)) for line in cast(list[Any], trace if isinstance(trace, list) else [])]
    return "\n".join([*text, *([value_text(rest)] if rest else [])])


def _problem(problem: Problem) -> str:
    return printable(problem.what)
