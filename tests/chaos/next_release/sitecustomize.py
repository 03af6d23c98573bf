"""The next patch release, on the path of a cluster's Python: it says another version, and its events say more.

It is installed when the file that NEXT_RELEASE names is there: processes that were started before are of the release
before, as in a rolling upgrade.
"""

import importlib.metadata
import os
import sys

VERSION = "0.1.999"

if os.path.exists(os.environ.get("NEXT_RELEASE", "")) and "synth.synthd" in sys.orig_argv:
    of_this_release = importlib.metadata.version

    def version(name: str) -> str:
        return VERSION if name == "synthctl" else of_this_release(name)

    importlib.metadata.version = version

    from synth.bus import recorded

    encode_now = recorded.encode

    def encode(event: recorded.Event) -> bytes:
        # A field that the release before does not know; events may gain some within a schema version.
        body = encode_now(event)
        return b'{"of_the_next_release":true' + (b"," if len(body) > 2 else b"") + body[1:]

    recorded.encode = encode
