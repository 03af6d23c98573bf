"""Builds msgspec's descriptions of structs before threads share them.

msgspec describes a struct when it is first decoded. It stores the description on the class before it is complete, and
evaluates annotations (Python code) meanwhile. If another thread decodes the same struct then, it reads the incomplete
description, and the process ends with a segmentation fault (msgspec 0.22).
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec


def build_struct_types() -> None:
    """Describe every struct of the modules that are imported. Call this before a thread decodes one."""
    for struct in set(_subclasses(msgspec.Struct)):
        try:
            msgspec.json.Decoder(struct)
        except Exception:  # noqa: BLE001 - a task app may define any struct; one that fails here cannot be decoded
            continue


def _subclasses(kind: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    for subclass in kind.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)
