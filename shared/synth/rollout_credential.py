"""Where a caller puts the credential of its rollout: in the query, in the path, or as its API key.

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
#: What to do about a credential that does not open: the last words of each refusal.
CID_FIX = "use the rollout's address as it was given, query included, or `ep.base_url` and `ep.api_key`"

# The form of what `synth.keys.mint_cid` returns.
_CREDENTIAL = rf"trace_(?:[0-9a-f]+_){{3}}[0-9]+_(?:L|[0-9]+)_[0-9]+_[0-9]+_[0-9]+_[0-9a-f]{{{CID_MAC_LENGTH}}}"
#: Other names that clients give the credential. Apps mean things of their own by these names, too.
_ALIASES = ("trace", "trace_correlation_id")
#: A credential, and the path that a client may have joined to it: `trace_x/v1/chat/completions`, `trace_xchat/…`.
_JOINED = re.compile(rf"({_CREDENTIAL})(?=$|\W|v1/|chat/|responses)")
_JOINED_RESPONSES = re.compile(rf"{_CREDENTIAL}(?:/|%2F)?(?:v1(?:/|%2F))?responses/?$", re.IGNORECASE)
_IN_PATH = re.compile(r"/rollouts/([^/]+)/(?:v1/)?(?:chat/completions|responses)/?$")


def find_credential(*, path: str, query: str, authorization: str = "") -> str | None:
    """The credential of a chat request, unchecked, without what a client joined to it; None for a call without one.

    It may stand in the query (`cid`, or an alias whose value has the form of a credential), in the path
    (`/rollouts/<credential>/v1/chat/completions`) or in `Authorization: Bearer trace_…`. With one in the query or the
    path any key will do, but for the credential of another rollout.

    path: percent-decoded. query: as it was sent, without the question mark. Raises `InvalidKey` where two places hold
    the credentials of two rollouts: whichever was meant, the call would be recorded in the other.
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
    """Whether a client joined the path of the Responses API to the query of its base address."""
    return _JOINED_RESPONSES.search(query) is not None


def _in_address(path: str, query: str) -> list[str] | None:
    """What stands where an address has the credential, the place that decides first; None for an address without."""
    given = parse_qs(query, keep_blank_values=True)
    found = given.get("cid", [])[:1]
    found += [given[name][0] for name in _ALIASES if name in given and _JOINED.match(given[name][0])]
    if in_path := _IN_PATH.search(path):
        found.append(in_path[1])
    return found or None


def _cut(text: str) -> str:
    joined = _JOINED.match(text)
    return joined[1] if joined else text.split("/", 1)[0]
