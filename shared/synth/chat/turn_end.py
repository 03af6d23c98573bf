"""The token with which a chat template ends the assistant's turn, which need not be the tokenizer's eos.

A base model's eos ends a document, but its template may end turns with another token (`<|im_end|>`). A reader that
waits only for the eos never sees a turn end.
"""

from __future__ import annotations

from typing import Any

#: A text that no template contains, so that the text after it is the end of the turn.
_REPLY = "reply-7c1f"


def turn_ends(tokenizer: Any) -> frozenset[int]:
    """Return the ids that end a turn: the tokenizer's eos, and the control token of its template after a reply."""
    eos = tokenizer.eos_token_id
    ends = {eos} - {None}
    turn = [{"role": "user", "content": "a"}, {"role": "assistant", "content": _REPLY}]
    try:
        rendered = str(tokenizer.apply_chat_template(turn, tokenize=False))
    except Exception:  # noqa: BLE001 - a template may refuse any conversation, in its own words
        return frozenset(ends)
    after = rendered.rpartition(_REPLY)[2].lstrip()
    ids = tokenizer.backend_tokenizer.encode(after, add_special_tokens=False).ids
    control = {id for id, token in tokenizer.added_tokens_decoder.items() if token.special}
    return frozenset(ends | ({ids[0]} & control if ids else set()))
