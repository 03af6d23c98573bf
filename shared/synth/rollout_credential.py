"""Where a caller puts the credential of its rollout: in the query, in the path, or as its API key.

An agent framework lets its user set a base address and a key, and treats both in its own way. The openai SDK joins the
path to the end of the whole address, query included, so `…/v1/chat/completions?cid=trace_x` is called as
`…/v1/chat/completions/?cid=trace_xchat/completions`. This module finds the credential; `synth.keys.read_cid` checks it.
"""

from __future__ import annotations

import re
from urllib.parse import parse_qs

from synth.keys import CID_PATTERN

#: Other names that clients give the credential. Apps mean things of their own by these names, too.
_ALIASES = ("trace", "trace_correlation_id")
#: A credential, and the path that a client may have joined to it: `trace_x/v1/chat/completions`, `trace_xchat/…`.
_JOINED = re.compile(rf"({CID_PATTERN})(?=$|\W|v1/|chat/)")
_IN_PATH = re.compile(r"/rollouts/([^/]+)/(?:v1/)?chat/completions/?$")


def find_credential(*, path: str, query: str, authorization: str = "") -> str | None:
    """The credential of a chat request, unchecked, without what a client joined to it; None for a call without one.

    It may stand in the query (`cid`, or an alias whose value has the form of a credential), in the path
    (`/rollouts/<credential>/v1/chat/completions`) or in `Authorization: Bearer trace_…`. One in the query or the path
    wins over any key. path: percent-decoded. query: as it was sent, without the question mark.
    """
    given = parse_qs(query, keep_blank_values=True)
    if "cid" in given:
        return _cut(given["cid"][0])
    for name in _ALIASES:
        if name in given and _JOINED.match(given[name][0]):
            return _cut(given[name][0])
    if in_path := _IN_PATH.search(path):
        return _cut(in_path[1])
    scheme, _, key = authorization.partition(" ")
    key = key.strip()
    return _cut(key) if scheme.lower() == "bearer" and key.startswith("trace_") else None


def _cut(text: str) -> str:
    joined = _JOINED.match(text)
    return joined[1] if joined else text.split("/", 1)[0]
