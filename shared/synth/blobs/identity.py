"""The identity of a store: the same id in each of its top folders. It shows that a mount or a bucket is the right one.

The folders may be mounts of their own, and a process may have only some of them. The bus has the id too
(`synth.bus.history.store_identity`).
"""

from __future__ import annotations

from pathlib import Path

from synth.blobs.local import INCOMING

#: The first parts of the keys of all blobs.
TOP_FOLDERS = ("jobs", "orgs", "judging")
#: The name of the file in the folder of incomplete files, which no code removes.
IDENTITY = "store-id"


def identity_key(folder: str) -> str:
    """Return the key of the identity of a top folder."""
    return f"{folder}/{INCOMING}/{IDENTITY}"


def read_local(root: Path, folder: str) -> str:
    """Return the identity of a top folder of a local store; "" without one."""
    try:
        return (root / identity_key(folder)).read_text(errors="replace").strip()
    except OSError:
        return ""
