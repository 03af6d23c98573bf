"""The limits of a sampling run: calls and money, neither of which is ever exceeded."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, cast

import msgspec

from synth.cli.sampling.answers import Answer
from synth.console.errors import UsageProblem

Json = dict[str, Any]

#: Tokens that an image is counted as, before its request: more than any provider bills for one.
_IMAGE_TOKENS = 4096
#: Tokens that an API adds to a request and to each of its messages, before the first answer shows how many.
_REQUEST_TOKENS, _MESSAGE_TOKENS = 64, 16


@dataclass(frozen=True)
class Price:
    """The price of a million tokens of prompts, and of replies, in the user's currency."""

    prompt: float
    reply: float

    def of(self, prompt_tokens: float, reply_tokens: float) -> float:
        return (prompt_tokens * self.prompt + reply_tokens * self.reply) / 1e6


def read_prices(values: list[str], models: list[str]) -> dict[str, Price]:
    """Read `--price MODEL=PROMPT,REPLY`, or `--price PROMPT,REPLY` for the first model. Raises `UsageProblem`."""
    prices: dict[str, Price] = {}
    for text in values:
        model, equals, figures = text.rpartition("=")
        parts = figures.split(",")
        try:
            prompt, reply = (float(part) for part in parts)
        except ValueError:
            prompt = reply = -1.0
        if not (0 <= prompt < float("inf") and 0 <= reply < float("inf")):
            raise UsageProblem(
                f"{text!r} is no price",
                expected="the price of a million tokens of prompts and of replies, as MODEL=2.5,10",
                where="--price",
            )
        name = model if equals else models[0]
        if name not in models:
            raise UsageProblem(f"{name!r} is no model of this command", expected=", ".join(models), where="--price")
        prices[name] = Price(prompt, reply)
    return prices


class SpendingLimit:
    """Counts requests and their cost, from any number of threads. None for a limit that does not exist.

    A call reserves the most that it can cost until its cost is known: the sum never passes the limit.
    """

    def __init__(
        self, *, max_calls: int | None = None, max_cost: float | None = None, price: Price | None = None
    ) -> None:
        self.calls = 0
        self.cost = 0.0
        self.max_calls, self.max_cost, self.price = max_calls, max_cost, price
        self._reserved = 0.0
        self._added = _REQUEST_TOKENS
        self._lock = threading.Lock()

    def reserve(self, body: Json) -> float | None:
        """Return the most that one more request can cost, which is reserved; None if the limits do not allow it."""
        with self._lock:
            most = self._most(body)
            if self.max_calls is not None and self.calls >= self.max_calls:
                return None
            if self.max_cost is not None and self.cost + self._reserved + most > self.max_cost:
                return None
            self.calls += 1
            self._reserved += most
            return most

    def settle(self, reserved: float, body: Json, answer: Answer | None) -> None:
        """Replace the reserve of a request by its cost; the reserve stays if the cost is not known.

        answer: None for a request that ended with an error of the whole run.
        """
        paid = reserved
        if answer is not None and answer.cost_known:
            paid = self.price.of(answer.prompt_tokens, answer.completion_tokens) if self.price else 0.0
        with self._lock:
            self._reserved -= reserved
            self.cost += paid
            if answer is not None and answer.prompt_tokens:
                self._added = max(self._added, self._added + answer.prompt_tokens - self._prompt_tokens(body))

    def _most(self, body: Json) -> float:
        if self.price is None or self.max_cost is None:
            return 0.0
        return self.price.of(self._prompt_tokens(body), float(body.get("max_tokens") or 0))

    def _prompt_tokens(self, body: Json) -> int:
        """Return the most tokens that a prompt can have: a token has a byte at least."""
        images = 0
        texts: list[Any] = [body.get("tools"), body.get("response_format")]
        messages = cast(list[Json], body["messages"])
        for message in messages:
            content = message.get("content")
            parts = [cast(Json, part) for part in cast(list[Any], content)] if isinstance(content, list) else []
            images += sum(part.get("type") != "text" for part in parts)
            shown = [part for part in parts if part.get("type") == "text"] if parts else content
            texts.append({**message, "content": shown})
        added = self._added + len(messages) * _MESSAGE_TOKENS
        return len(msgspec.json.encode(texts)) + images * _IMAGE_TOKENS + added


def check_limits(*, max_cost: float | None, price: Price | None, max_tokens: int | None) -> None:
    """Refuse a limit that could not be kept. Raises `UsageProblem`."""
    missing = [
        flag
        for flag, value in (("--price", price), ("--max-tokens", max_tokens))
        if max_cost is not None and value is None
    ]
    if missing:
        raise UsageProblem(
            f"{' and '.join(missing)} missing",
            expected="the price of a million tokens and the length of a reply, by which the cost is bounded",
            fix="set it, or limit the calls with --max-calls",
            where="--max-cost",
        )
