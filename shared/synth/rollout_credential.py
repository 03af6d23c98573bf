"""The places of a rollout's credential in a call: the query, the path, or the API key.

An agent framework lets its user set a base address and a key, and treats both in its own way. The openai SDK joins the
path to the end of the whole address, query included, so `…/v1/chat/completions?cid=trace_x` is called as
`…/v1/chat/completions/?cid=trace_xchat/completions`. This module finds the credential; `synth.keys.read_cid` checks it.
A task app imports it, so it needs no cryptography.
"""

from __future__ import annotations

import re
from urllib.parse import parse_qs

from synth.errors import InvalidKey

#: Hex digits of the signature, the last part of a credential.
CID_MAC_LENGTH = 24
#: The fix for a credential that does not open: the last words of each refusal.
CID_FIX = "use the rollout's address as it was given, query included, or `ep.base_url` and `ep.api_key`"

# The form of a result of `synth.keys.mint_cid`.
_CREDENTIAL = rf"trace_(?:[0-9a-f]+_){{3}}[0-9]+_(?:L|[0-9]+)_[0-9]+_[0-9]+_[0-9]+_[0-9a-f]{{{CID_MAC_LENGTH}}}"
#: Other names that clients give the credential. Apps use these names for other values, too.
_ALIASES = ("trace", "trace_correlation_id")
#: A credential, and the path that a client may have joined to it: `trace_x/v1/chat/completions`, `trace_xchat/…`.
_JOINED = re.compile(rf"({_CREDENTIAL})(?=$|\W|v1/|chat/|responses)")
_JOINED_RESPONSES = re.compile(rf"{_CREDENTIAL}(?:/|%2F)?(?:v1(?:/|%2F))?responses/?$", re.IGNORECASE)
_IN_PATH = re.compile(r"/rollouts/([^/]+)/(?:v1/)?(?:chat/completions|responses)/?$")


def find_credential(*, path: str, query: str, authorization: str = "") -> str | None:
    """Return the credential of a chat request, unchecked, without text that a client joined to it; None for none.

    It may stand in the query (`cid`, or an alias whose value has the form of a credential), in the path
    (`/rollouts/<credential>/v1/chat/completions`) or in `Authorization: Bearer trace_…`. With one in the query or the
    path any key is accepted, except the credential of another rollout.

    path: percent-decoded. query: as it was sent, without the question mark. Raises `InvalidKey` if two places hold the
    credentials of two rollouts: the call might be recorded in the wrong one.
    """
    in_address = _in_address(path, query)
    scheme, _, key = authorization.partition(" ")
    bearer = key.strip() if scheme.lower() == "bearer" and key.strip().startswith("trace_") else None
    if in_address is None:
        return None if bearer is None else _cut(bearer)
    places = [*in_address, *([] if bearer is None else [bearer])]
    if len({_cut(text) for text in places if _JOINED.match(text)}) > 1:
        raise InvalidKey(
            "this call has the credentials of two rollouts, one in its address and another as its key or elsewhere in "
            f"the address: make a client for each rollout; {CID_FIX}, both of the same rollout"
        )
    return _cut(in_address[0])


def is_joined_responses(query: str) -> bool:
    """Return whether a client joined the path of the Responses API to the query of its base address."""
    return _JOINED_RESPONSES.search(query) is not None


def _in_address(path: str, query: str) -> list[str] | None:
    """Return the texts at an address's places for a credential, the deciding one first; None for an address without."""
    query_fields = parse_qs(query, keep_blank_values=True)
    texts = query_fields.get("cid", [])[:1]
    texts += [
        query_fields[name][0] for name in _ALIASES if name in query_fields and _JOINED.match(query_fields[name][0])
    ]
    if in_path := _IN_PATH.search(path):
        texts.append(in_path[1])
    return texts or None


def _cut(text: str) -> str:
    joined = _JOINED.match(text)
    return joined[1] if joined else text.split("/", 1)[0]
