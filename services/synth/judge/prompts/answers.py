"""What a judge answers: found in its text, and checked. What is wrong with it is a sentence that it can be told."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, cast

import msgspec

from synth.chat.json_text import BadJson, read_json, refuse_constant
from synth.judging.settings import Criterion


class UnusableAnswer(Exception):
    """The answer holds no scores that can be used; the message says why, to the judge and to people."""


class Scores(msgspec.Struct, frozen=True, kw_only=True):
    """What one vote says: of each criterion by id, its score and the reason."""

    scores: dict[str, float]
    reasons: dict[str, str] = {}
    summary: str = ""


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What one vote says of a group. places: of each rollout in the order in which they were shown; 0 is the best."""

    places: list[int]
    summary: str = ""


def read_scores(text: str, criteria: Sequence[Criterion]) -> Scores:
    """The scores in an answer: each criterion's, finite and on its scale. Raises `UnusableAnswer`."""
    answer = _object(text, "scores")
    given = answer.get("scores")
    if not isinstance(given, dict):
        raise UnusableAnswer('the JSON has no object "scores" with each criterion in it')
    scores: dict[str, float] = {}
    reasons: dict[str, str] = {}
    for criterion in criteria:
        entry = cast(dict[str, Any], given).get(criterion.id)
        if entry is None:
            raise UnusableAnswer(f'"scores" lacks the criterion {criterion.id!r}')
        if isinstance(entry, dict):
            fields = cast(dict[str, Any], entry)
            reasons[criterion.id] = _text(fields.get("reason"))
            entry = fields.get("score")
        scores[criterion.id] = _on_scale(entry, criterion)
    return Scores(scores=scores, reasons=reasons, summary=_text(answer.get("summary")))


def read_order(text: str, count: int) -> Order:
    """The order in an answer, as numbers from 1 to `count`, the best first. Raises `UnusableAnswer`."""
    answer = _object(text, "order")
    given = answer.get("order")
    if not isinstance(given, list):
        raise UnusableAnswer('the JSON has no list "order"')
    order = cast(list[Any], given)
    numbers = [n for n in order if isinstance(n, int) and not isinstance(n, bool)]
    if len(numbers) != len(order) or sorted(numbers) != list(range(1, count + 1)):
        raise UnusableAnswer(f'"order" is {json.dumps(order)[:200]}, and not each number from 1 to {count} once')
    places = [0] * count
    for place, number in enumerate(numbers):
        places[number - 1] = place
    return Order(places=places, summary=_text(answer.get("reason")))


def _on_scale(value: Any, criterion: Criterion) -> float:
    named = f"the score of {criterion.id!r}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UnusableAnswer(f"{named} is {json.dumps(value)[:80]}, and not a number")
    if not math.isfinite(value):
        raise UnusableAnswer(f"{named} is not finite")
    match criterion.scale:
        case "binary" if value not in (0, 1):
            raise UnusableAnswer(f"{named} is {value}, and neither 0 nor 1")
        case "count" if value < 0 or value != int(value):
            raise UnusableAnswer(f"{named} is {value}, and not a whole number from 0 on")
        case "bounded" if not 0 <= value <= 1:
            raise UnusableAnswer(f"{named} is {value}, and not from 0 to 1")
        case _:
            return float(value)


def _object(text: str, key: str) -> dict[str, Any]:
    """The answer's JSON object: all of the text, else the last one in it that has this key."""
    if not text.strip():
        raise UnusableAnswer("the answer is empty")
    try:
        whole = read_json(text)
    except BadJson as error:
        found = [candidate for candidate in _objects(text) if key in candidate]
        if not found:
            raise UnusableAnswer(f"the answer is not JSON ({error})") from error
        return found[-1]
    if not isinstance(whole, dict):
        raise UnusableAnswer("the answer is JSON, but no object")
    return cast(dict[str, Any], whole)


def _objects(text: str) -> list[dict[str, Any]]:
    """The JSON objects that stand in a text, such as behind a judge's reasoning or in a fenced block."""
    decoder = json.JSONDecoder(parse_constant=refuse_constant)
    found: list[dict[str, Any]] = []
    at = text.find("{")
    while at >= 0:
        try:
            value, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            at = text.find("{", at + 1)
            continue
        found.append(value)
        at = text.find("{", end)
    return found


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
