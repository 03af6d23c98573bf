"""What an engine says of token ids that its context cannot hold."""

from __future__ import annotations

from synth.errors import Problem


def does_not_fit(prompt: int, context: int) -> Problem:
    """A prompt of `prompt` tokens, for a context of `context` tokens."""
    return Problem(
        what=f"the prompt has {prompt} tokens",
        expected=f"1 to {context - 1}, so that at least one token can follow within the context of {context}",
        fix="shorten the messages",
        where="messages",
    )


def cannot_be_scored(tokens: int, context: int) -> Problem:
    """A text of `tokens` tokens whose logprobs were asked for, for a context of `context` tokens."""
    return Problem(
        what=f"the text to score has {tokens} tokens",
        expected=f"2 to {context - 1}, within the context of {context}",
        fix="score another part of the text",
        where="token_ids",
    )
