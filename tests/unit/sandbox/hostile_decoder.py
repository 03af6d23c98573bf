"""A decoder that does what its bytes say, as one that hostile bytes have taken over."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

_kept: list[bytes] = []


def decode(body: bytes, write: Callable[[bytes], None]) -> None:
    if body == b"crash":
        os.abort()
    if body == b"memory":
        bytearray(1 << 30)
    if body == b"time":
        while True:
            pass
    if body == b"daemon":
        if os.fork() == 0:
            time.sleep(600)
        return
    if body.startswith(b"read "):
        write(Path(body[5:].decode()).read_bytes())
    if body == b"environment":
        write("\n".join(os.environ.values()).encode())
    if body == b"descriptors":
        write(str([fd for fd in range(256) if _is_open(fd)]).encode())
    if body == b"parent":
        with open(f"/proc/{os.getppid()}/mem", "r+b"):
            write(b"open")
    _kept.append(body)
    write(str(len(_kept)).encode())


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True
