"""The selection of a teacher's replies, and the rows that they become."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import msgspec

from synth.cli.comparison.scoring import Score
from synth.cli.comparison.validity import calls_problem, format_problem
from synth.cli.sampling.answers import Answer
from synth.cli.sampling.rows import PromptRow, text_of

Json = dict[str, Any]

#: The keys of an assistant's message that training reads.
_KEPT = ("role", "content", "reasoning_content", "reasoning", "tool_calls", "name")
#: The keys of a tool call that training reads.
_CALL = ("id", "type", "function")


@dataclass(frozen=True)
class KeepRules:
    """The rules for keeping replies. min_score: None for no bound. best: replies kept of each prompt; None for all.

    pairs: rows are the best and the worst reply of a prompt, for DPO. cut_off: whether replies that ended at the token
    limit are kept.
    """

    min_score: float | None = None
    best: int | None = None
    pairs: bool = False
    cut_off: bool = False


def rows_of(
    row: PromptRow, scored: Sequence[tuple[Answer, Score | None]], rules: KeepRules, dropped: Counter[str]
) -> Iterator[Json]:
    """Yield the rows that a prompt's replies make. scored: each reply with its score, None without a scorer."""
    usable: list[tuple[float, Json]] = []
    seen: set[bytes] = set()
    for answer, score in scored:
        message = _trained(answer.message)
        if (reason := _fault(row, answer, rules)) is not None:
            dropped[reason] += 1
        elif score is not None and score.value is None:
            dropped["without a score"] += 1
        elif (key := _digest(message)) in seen:
            dropped["duplicate"] += 1
        else:
            seen.add(key)
            usable.append((score.value if score is not None and score.value is not None else 0.0, message))
    ranked = sorted(usable, key=lambda pair: -pair[0])
    if rules.pairs:
        yield from _pair(row, ranked, rules, dropped)
        return
    good = [message for value, message in ranked if rules.min_score is None or value >= rules.min_score]
    dropped["below --min-score"] += len(ranked) - len(good)
    kept = good[: rules.best]
    dropped["beyond --best"] += len(good) - len(kept)
    for message in kept:
        yield _with_tools({"messages": [*_context(row.messages), message]}, row)


def prompt_key(row: PromptRow) -> bytes:
    """Return what two rows with the same prompt share: 128 bits of its SHA-256."""
    prompt = [row.messages, row.tools, row.response_format]
    return hashlib.sha256(msgspec.json.encode(prompt, order="sorted")).digest()[:16]


def _pair(row: PromptRow, ranked: list[tuple[float, Json]], rules: KeepRules, dropped: Counter[str]) -> Iterator[Json]:
    """Yield the best and the worst reply as a pair, if their scores differ and the best is good enough."""
    if len(ranked) < 2 or ranked[0][0] == ranked[-1][0]:
        dropped["no pair: one reply, or equal scores"] += len(ranked)
        return
    if rules.min_score is not None and ranked[0][0] < rules.min_score:
        dropped["below --min-score"] += len(ranked)
        return
    dropped["between the best and the worst"] += len(ranked) - 2
    yield {
        "input": _with_tools({"messages": row.messages}, row),
        "preferred_output": [ranked[0][1]],
        "non_preferred_output": [ranked[-1][1]],
    }


def _fault(row: PromptRow, answer: Answer, rules: KeepRules) -> str | None:
    """Return why a reply cannot be learnt from; None if it can."""
    message = answer.message
    if message.get("refusal") or answer.finish_reason == "content_filter":
        return "refusal"
    if answer.finish_reason == "length" and not rules.cut_off:
        return "cut off at the token limit"
    if not text_of(message).strip() and not message.get("tool_calls"):
        return "empty"
    if message.get("tool_calls") and calls_problem(row, message):
        return "invalid tool call"
    # The format of the dataset's own reply does not bind the teacher; only the format in the request does.
    if row.response_format is not None and format_problem(row, message):
        return "invalid format"
    return None


def _trained(message: Json) -> Json:
    kept = {name: message[name] for name in _KEPT if message.get(name) not in (None, [], "")}
    calls = cast(list[Json], kept.get("tool_calls") or [])
    if calls:
        kept["tool_calls"] = [{name: call[name] for name in _CALL if name in call} for call in calls]
    elif "content" not in kept:
        kept["content"] = ""
    return {"role": "assistant", **kept}


def _context(messages: list[Json]) -> list[Json]:
    """Return the messages of a prompt: nothing is learnt from the assistant's, which the teacher did not write."""
    return [message | {"weight": 0} if message.get("role") == "assistant" else message for message in messages]


def _with_tools(data: Json, row: PromptRow) -> Json:
    return data | ({"tools": row.tools} if row.tools else {})


def _digest(message: Json) -> bytes:
    calls = [call.get("function") for call in cast(list[Json], message.get("tool_calls") or [])]
    return hashlib.sha256(msgspec.json.encode([text_of(message).strip(), calls], order="sorted")).digest()
