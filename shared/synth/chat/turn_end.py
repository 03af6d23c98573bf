"""The token with which a chat template ends the assistant's turn, which need not be the tokenizer's eos.

A base model's eos ends a document, and its template may still write turns (`<|im_end|>`): whoever waits for the eos
alone never sees a turn end.
"""

from __future__ import annotations

from typing import Any

#: What no template holds, so that the end of the turn is what follows it.
_REPLY = "reply-7c1f"


def turn_ends(tokenizer: Any) -> frozenset[int]:
    """The ids that end a turn: the tokenizer's eos, and the control token that its template writes after a reply."""
    eos = tokenizer.eos_token_id
    found = {eos} - {None}
    turn = [{"role": "user", "content": "a"}, {"role": "assistant", "content": _REPLY}]
    try:
        rendered = str(tokenizer.apply_chat_template(turn, tokenize=False))
    except Exception:  # noqa: BLE001 - a template may refuse any conversation, in its own words
        return frozenset(found)
    after = rendered.rpartition(_REPLY)[2].lstrip()
    ids = tokenizer.backend_tokenizer.encode(after, add_special_tokens=False).ids
    control = {id for id, token in tokenizer.added_tokens_decoder.items() if token.special}
    return frozenset(found | ({ids[0]} & control if ids else set()))
