"""The log-probabilities of a job's teacher for the tokens that its policy sampled."""

from __future__ import annotations

import math
from collections.abc import Sequence

from synth.errors import UserError
from synth.inference.engines.protocol import Engine

#: The tokens that a context has to have beside the scored ones (`Engine.score`).
_SPARE = 1


async def score_tokens(engine: Engine, token_ids: Sequence[int]) -> list[float | None]:
    """Return the log-probabilities (nats, temperature 1) of token_ids[1:] under a teacher.

    The last one is None if the tokens fill its context to the end: an engine scores one token fewer than it holds.
    Raises `UserError` for an unknown token, for a text that is longer than its context, and if it gives
    a token no finite log-probability; `Transient` when it dies.
    """
    unknown = [token for token in token_ids if not 0 <= token < engine.vocabulary]
    if unknown:
        raise _refused(
            f"it knows {engine.vocabulary} tokens, and token {unknown[0]} is none of them", "token ids of it"
        )
    fits = token_ids[: engine.max_context - _SPARE] if len(token_ids) == engine.max_context else token_ids
    scored = await engine.score(fits)
    for position, logprob in enumerate(scored, start=1):
        if not math.isfinite(logprob):
            token = token_ids[position]
            raise _refused(f"it gives token {position} (id {token}) the log-probability {logprob}", "a finite number")
    return [*scored, *[None] * (len(token_ids) - 1 - len(scored))]


def _refused(what: str, expected: str) -> UserError:
    fix = "choose another teacher, or shorten the rollouts"
    return UserError(f"the teacher cannot score this: {what}", expected=expected, fix=fix, where="teacher")
