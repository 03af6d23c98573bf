"""Find a judge's answer in its text, and check it. An error is a sentence that can be sent to the judge.

Reading takes time that is linear in any text, but seconds for the longest: call it in a thread.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, cast

import msgspec

from synth.chat.json_text import BadJson, read_json, refuse_constant
from synth.judging.settings import Criterion

#: How many of the last braces in a text may begin the answer: it comes after the reasoning.
_MAX_STARTS = 4096
#: Characters that are read to find it, for each one of the text, and beside them for a short text; a start costs some.
_READ_SHARE = 16
_READ_FREE = 1 << 22
_START_COST = 256
#: Characters that are kept of the text that is already read.
_CUT_AT = 1 << 16
#: A count above it is no count of anything in a rollout, and would drown every other criterion.
MAX_COUNT = 1_000_000


class UnusableAnswer(Exception):
    """The answer has no usable scores; the message gives the reason, for the judge and for people."""


class Scores(msgspec.Struct, frozen=True, kw_only=True):
    """The scores of one vote: for each criterion, by id, its score and the reason."""

    scores: dict[str, float]
    reasons: dict[str, str] = {}
    summary: str = ""


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """The ranking of one vote. places: of each rollout, in the order in which they were shown; 0 is the best."""

    places: list[int]
    summary: str = ""


def read_scores(text: str, criteria: Sequence[Criterion]) -> Scores:
    """Return the scores in an answer: each criterion's, finite and on its scale. Raises `UnusableAnswer`."""
    answer = answer_object(text, "scores")
    value = answer.get("scores")
    if not isinstance(value, dict):
        raise UnusableAnswer('the JSON has no object "scores" with each criterion in it')
    scores: dict[str, float] = {}
    reasons: dict[str, str] = {}
    for criterion in criteria:
        entry = cast(dict[str, Any], value).get(criterion.id)
        if entry is None:
            raise UnusableAnswer(f'"scores" lacks the criterion {criterion.id!r}')
        if isinstance(entry, dict):
            fields = cast(dict[str, Any], entry)
            reasons[criterion.id] = text_of(fields.get("reason"))
            entry = fields.get("score")
        scores[criterion.id] = _on_scale(entry, criterion)
    return Scores(scores=scores, reasons=reasons, summary=text_of(answer.get("summary")))


def read_order(text: str, count: int) -> Order:
    """Return the order in an answer, as numbers from 1 to `count`, the best first. Raises `UnusableAnswer`."""
    answer = answer_object(text, "order")
    value = answer.get("order")
    if not isinstance(value, list):
        raise UnusableAnswer('the JSON has no list "order"')
    order = cast(list[Any], value)
    numbers = [n for n in order if isinstance(n, int) and not isinstance(n, bool)]
    if len(numbers) != len(order) or sorted(numbers) != list(range(1, count + 1)):
        raise UnusableAnswer(f'"order" is {shown(order, 200)}, and not each number from 1 to {count} once')
    places = [0] * count
    for place, number in enumerate(numbers):
        places[number - 1] = place
    return Order(places=places, summary=text_of(answer.get("reason")))


def _on_scale(value: Any, criterion: Criterion) -> float:
    named = f"the score of {criterion.id!r}"
    if (criterion.scale != "binary" and isinstance(value, bool)) or not isinstance(value, int | float):
        raise UnusableAnswer(f"{named} is {shown(value, 80)}, and not a number")
    try:
        finite = math.isfinite(value)
    except OverflowError:
        # A whole number that no float holds.
        finite = False
    if not finite:
        raise UnusableAnswer(f"{named} is not finite")
    match criterion.scale:
        case "binary" if value not in (0, 1):
            raise UnusableAnswer(f"{named} is {value}, and neither 0 nor 1")
        case "count" if value < 0 or value != int(value):
            raise UnusableAnswer(f"{named} is {value}, and not a whole number from 0 on")
        case "count" if value > MAX_COUNT:
            raise UnusableAnswer(f"{named} is {value:g}, and no count goes beyond {MAX_COUNT:,}")
        case "bounded" if not 0 <= value <= 1:
            raise UnusableAnswer(f"{named} is {value}, and not from 0 to 1")
        case _:
            return float(value)


def answer_object(text: str, key: str) -> dict[str, Any]:
    """Return the answer's JSON object: all of the text, else the last one in it that has this key."""
    if not text.strip():
        raise UnusableAnswer("the answer is empty")
    try:
        whole = read_json(text)
    except BadJson as error:
        candidates = [candidate for candidate in _objects(text) if key in candidate]
        if not candidates:
            raise UnusableAnswer(f"the answer is not JSON ({error})") from error
        return candidates[-1]
    if not isinstance(whole, dict):
        raise UnusableAnswer("the answer is JSON, but no object")
    return cast(dict[str, Any], whole)


def _objects(text: str) -> list[dict[str, Any]]:
    """Return the JSON objects that stand in a text, such as behind a judge's reasoning or in a fenced block.

    Raises `UnusableAnswer` for a text that cannot be searched in linear time: one nested too deeply to be read, or with
    too many objects that do not end.
    """
    decoder = json.JSONDecoder(parse_constant=refuse_constant)
    objects: list[dict[str, Any]] = []
    left = _READ_SHARE * len(text) + _READ_FREE
    at = _first_start(text)
    while at >= 0:
        if at > _CUT_AT:
            # Each error of the parser counts the lines before it.
            text, at = text[at:], 0
        try:
            value, end = decoder.raw_decode(text, at)
        except RecursionError as error:
            raise UnusableAnswer("the answer is nested too deeply to be JSON with scores") from error
        except ValueError as error:
            left -= _START_COST + _read_until(error, text) - at
            if left < 0:
                raise UnusableAnswer("the answer has too many braces that begin no JSON object") from error
            at = text.find("{", at + 1)
            continue
        objects.append(value)
        at = text.find("{", end)
    return objects


def _first_start(text: str) -> int:
    """Return the position of the first of the last `_MAX_STARTS` braces; -1 without any."""
    first, at = -1, text.rfind("{")
    for _ in range(_MAX_STARTS):
        if at < 0:
            break
        first, at = at, text.rfind("{", 0, at)
    return first


def _read_until(error: ValueError, text: str) -> int:
    """Return how far the parser may have come: it gives no position for an endless string or an invalid number."""
    if not isinstance(error, json.JSONDecodeError) or error.msg.startswith("Unterminated"):
        return len(text)
    return error.pos


def shown(value: Any, limit: int) -> str:
    try:
        return json.dumps(value)[:limit]
    except RecursionError:
        return "nested too deeply to be shown"


def text_of(value: Any) -> str:
    return value if isinstance(value, str) else ""
