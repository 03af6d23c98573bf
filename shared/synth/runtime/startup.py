"""Work that a process does once, while it starts, for the modules that it imports."""

from __future__ import annotations

import gc
from collections.abc import Generator, Iterator
from contextlib import contextmanager

import msgspec


@contextmanager
def collector_off() -> Generator[None]:
    """Import in this block without the garbage collector, and keep it from traversing the imported objects later.

    Modules stay until the process ends. To traverse them again and again takes a fifth of the time of an import of
    transformers, and later 0.1 s of each full collection.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def build_struct_types() -> None:
    """Have msgspec describe every struct of the modules that are imported. Call this before a thread decodes one.

    msgspec describes a struct when it is first decoded. It stores the description on the class before it is complete,
    and evaluates annotations (Python code) meanwhile. If another thread decodes the same struct then, it reads the
    incomplete description, and the process ends with a segmentation fault (msgspec 0.22).
    """
    for struct in set(_subclasses(msgspec.Struct)):
        try:
            msgspec.json.Decoder(struct)
        except Exception:  # noqa: BLE001 - a task app may define any struct; one that fails here cannot be decoded
            continue


def _subclasses(kind: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    for subclass in kind.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)
