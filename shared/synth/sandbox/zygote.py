"""A process that has imported a function, and calls it on untrusted bytes: each call in a fork of its own.

`python -I -c BOOT ROOTS MODULE FUNCTION`, by `synth.sandbox.decoders`. A call cannot affect the next one, even if it
takes over its fork: a fork has a pipe to this process and no other descriptor, cannot read its memory, and cannot make
a process that outlives it.

A request on stdin is a `REQUEST` and its bytes; a reply on stdout is a `REPLY` and the function's output.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import resource
import struct
import sys
from collections.abc import Callable
from io import FileIO

from synth.sandbox.seccomp import build_fork_filter, install_filter, is_known_machine

#: Length; CPU seconds and bytes of address space of the call.
REQUEST = struct.Struct("=QQQ")
#: Exit code of the call (negative for a signal), and the length.
REPLY = struct.Struct("=qQ")
_DUMPABLE, _NO_NEW_PRIVS = 4, 38
_FAILED = 70


def main() -> None:
    """Serve stdin until it ends."""
    module, name = sys.argv[2:4]
    function = getattr(importlib.import_module(module), name)
    fork_filter = b""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        libc.prctl(_DUMPABLE, 0, 0, 0, 0)
        libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0)
        fork_filter = build_fork_filter() if is_known_machine() else b""
    # A collection would write to every page that the forks share.
    gc.disable()
    gc.freeze()
    requests, replies = sys.stdin.buffer, sys.stdout.buffer
    while head := requests.read(REQUEST.size):
        length, cpu_s, map_bytes = REQUEST.unpack(head)
        code, answer = _call(function, requests.read(length), cpu_s, map_bytes, fork_filter)
        replies.write(REPLY.pack(code, len(answer)) + answer)
        replies.flush()


def _call(
    function: Callable[[bytes, Callable[[bytes], None]], None],
    body: bytes,
    cpu_s: int,
    map_bytes: int,
    fork_filter: bytes,
) -> tuple[int, bytes]:
    """Call the function in a fork; return its exit code and its output."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.closerange(0, writer)
            os.closerange(writer + 1, 256)
            resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
            resource.setrlimit(resource.RLIMIT_AS, (map_bytes, map_bytes))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            if fork_filter:
                install_filter(fork_filter, supervised=False)
            with open(writer, "wb", buffering=0) as file:
                function(body, lambda part: _write(file, part))
            os._exit(0)
        except BaseException:  # noqa: BLE001 - the edge of the process: its exit code reports it
            os._exit(_FAILED)
    os.close(writer)
    with open(reader, "rb") as answers:
        answer = answers.read()
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status), answer


def _write(file: FileIO, part: bytes) -> None:
    while part:
        part = part[file.write(part) :]
