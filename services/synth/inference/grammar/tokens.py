"""Which token may come next in a completion that must be JSON or a call of a tool. No chats, no HTTP, no torch.

Both engines compile the same text with the same library, llguidance, so both allow the same tokens at every
position; and the distribution of a completion's tokens can be computed again from its token ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher

from synth.errors import UserError


@dataclass(frozen=True, eq=False, slots=True)
class Grammar:
    """The grammar of a completion before the end of the turn: a JSON value that fits a schema, or that or tool calls.

    text: a JSON schema, or a grammar in llguidance's Lark (kind "lark"), as both engines take it.
    start: the compiled matcher before the first token; it is copied, and never advanced.
    vocabulary: tokens of the model.
    """

    text: str
    kind: Literal["json", "lark"]
    start: LLMatcher
    vocabulary: int

    def begin(self) -> GrammarState:
        """Return the state before the first token of a completion."""
        return GrammarState(self.start.deep_copy(), self.vocabulary)

    def masks(self, token_ids: Sequence[int]) -> Iterator[npt.NDArray[np.bool_]]:
        """Yield bool [V] for each token of a completion: the tokens that could have come in its place.

        Raises `UserError` if the schema became too complex to be followed.
        """
        state = self.begin()
        for token_id in token_ids:
            yield state.allowed()
            state.advance(token_id)

    def check_whole(self, token_ids: Sequence[int]) -> None:
        """Raise `UserError` if these tokens, the last of which ended the turn, are not a whole value.

        A matcher that gives up (its parser has limits) allows only the end of the turn, and a sampler under its masks
        cannot distinguish that from the end of a value.
        """
        matcher = self.start.deep_copy()
        taken = matcher.try_consume_tokens(list(token_ids[:-1]))
        if taken == len(token_ids) - 1 and not matcher.is_error():
            # Not before: a matcher may give up only when the next tokens are computed.
            matcher.compute_bitmask()
        if matcher.is_error() or not matcher.is_accepting():
            reason = matcher.get_error().partition("\n")[0] or f"it ended after {len(token_ids)} tokens, in the middle"
            raise _unfollowed(reason)


class GrammarState:
    """How far one completion has come in its grammar."""

    def __init__(self, matcher: LLMatcher, vocabulary: int) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary

    def allowed(self) -> npt.NDArray[np.bool_]:
        """Return bool [V]: the tokens that may come next; only the end of the turn once the value is complete."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        allowed = np.zeros(self._vocabulary, np.bool_)
        known = np.unpackbits(bits, bitorder="little")[: self._vocabulary]
        allowed[: len(known)] = known
        return allowed

    def advance(self, token_id: int) -> None:
        """Take the next token. Raises `UserError` if the schema is too complex to be followed."""
        if self._matcher.is_stopped() and not self._matcher.is_error():
            return  # the value is complete, and this is the end of the turn
        if not self._matcher.consume_token(token_id) and self._matcher.is_error():
            raise _unfollowed(self._matcher.get_error().partition("\n")[0])


def _unfollowed(reason: str) -> UserError:
    return UserError(
        f"the JSON schema cannot be followed any further: {reason[:200]}",
        expected="a schema with fewer alternatives and shorter patterns",
        where="response_format",
    )


def build_lexicon(tokenizer: Any, vocabulary: int) -> Any:
    """Build llguidance's view of a Hugging Face tokenizer, as vLLM does. Takes a second for a vocabulary of 150k."""
    from llguidance.hf import from_tokenizer

    return from_tokenizer(tokenizer, max(vocabulary, len(tokenizer)))
