"""Decide whose fault an error of an agent's own client or framework is: the policy's, the platform's, or neither's.

An agent with its own client raises that client's errors. They are distinguished here by their texts and names, since
none of these libraries is imported. An unknown error stays an error of the environment. The collector has more data
than this module: it examines the last reply itself, and counts an error after one that was cut off, or whose tool call
cannot be read, as the policy's (`synth.rollouts.rewards.scoring`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast
from urllib.parse import urlsplit

from synth.taskapp.llm import InferenceUnavailable, PolicyFailure

#: Codes of the inference API for faults of the policy's own conversation, and our codes for them.
POLICY_CODES = {
    "context_length_exceeded": ("context_length", "the conversation has outgrown the model"),
    "call_budget_spent": ("call_budget", "the rollout has made all of its calls of the model and did not end"),
}
#: Errors of frameworks for a model that does not follow its instructions: package → exceptions, each with our code.
_FRAMEWORKS = {
    "agents": {"MaxTurnsExceeded": "max_turns", "ModelBehaviorError": "bad_reply"},
    "pydantic_ai": {"UsageLimitExceeded": "max_turns", "UnexpectedModelBehavior": "bad_reply"},
    "langchain_core": {"OutputParserException": "bad_reply"},
    "langgraph": {"GraphRecursionError": "max_turns"},
}
_LONGEST_CHAIN = 20


def blame(error: BaseException, *, url: str) -> PolicyFailure | InferenceUnavailable | None:
    """Return the failure of the policy or the platform behind an episode's error; None for the environment's.

    url: the rollout's address. An error of a client that called another one, such as a judge's, is not the policy's.
    """
    chain = list(_chain(error))
    for link in chain:
        if isinstance(link, PolicyFailure | InferenceUnavailable):
            return link
        if _called(link) == urlsplit(url)[:2]:
            return _of_call(link)
    for link in chain:
        if (code := _of_framework(link)) is not None:
            return PolicyFailure(f"{type(link).__name__}: {link}", code=code)
    return None


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and its causes; a group of one error continues with that error."""
    link: BaseException | None = error
    for _ in range(_LONGEST_CHAIN):
        if link is None:
            return
        yield link
        if isinstance(link, BaseExceptionGroup):
            members = cast("BaseExceptionGroup[BaseException]", link).exceptions
            link = members[0] if len(members) == 1 else link.__cause__
        else:
            link = link.__cause__


def _called(error: BaseException) -> tuple[str, str] | None:
    """Return scheme and host of the request of an HTTP client's error; None for another error."""
    try:
        parts = urlsplit(str(cast(Any, error).request.url))
    except (AttributeError, RuntimeError, ValueError):  # httpx raises a RuntimeError for an error without a request
        return None
    return parts[:2]


def _of_call(error: BaseException) -> PolicyFailure | InferenceUnavailable | None:
    """Return the meaning of a failed call of the model, by the status and the code of the openai SDK's error."""
    status, code = getattr(error, "status_code", None), getattr(error, "code", None)
    if code in POLICY_CODES:
        ours, what = POLICY_CODES[code]
        return PolicyFailure(what, code=ours)
    if status is None or status == 429 or status >= 500:
        return InferenceUnavailable(f"{type(error).__name__}: {error}")
    return None


def _of_framework(error: BaseException) -> str | None:
    for kind in type(error).__mro__:
        code = _FRAMEWORKS.get(kind.__module__.partition(".")[0], {}).get(kind.__name__)
        if code is not None:
            return code
    return None
