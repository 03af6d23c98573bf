"""The process between a service and a command: it restricts the command, watches it, and ends all its descendants.

It is started as `python -I -S -c BOOT`, by `synth.sandbox.command`, and imports only the standard library: it starts in
milliseconds, and holds no key. Its input, output and errors are the command's. It reads a `CommandOrder` from the
socket, and writes one line: how the command ended. It ends the command when the socket closes.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import select
import signal
import socket
import sys
import time
from contextlib import suppress

from synth.sandbox.landlock import RESTRICTS_SIGNALS, RESTRICTS_TRUNCATE, landlock_version, restrict
from synth.sandbox.processes import end_descendants, find_descendants, reap, resident_bytes, used_bytes
from synth.sandbox.seccomp import answer_fork, build_filter, install_filter, is_known_machine

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` is not imported to run: it costs milliseconds
    from typing import Any, NoReturn

    from synth.sandbox.orders import Bounds, CommandOrder, Ending

_PDEATHSIG, _DUMPABLE, _CAPBSET_DROP, _SUBREAPER, _NO_NEW_PRIVS, _CAP_AMBIENT = 1, 4, 24, 36, 38, 47
_CAPABILITIES, _CAPSET_VERSION = 64, 0x20080522
# Seconds between two checks of memory and disk, and after a refused fork until the next one is considered.
_WATCH_S, _COUNT_S = 0.25, 0.02
_END_S = 10.0
_REPORT_BYTES = 1 << 16
_GO, _READY = b"g", b"r"


def main(fd: int) -> NoReturn:
    """Serve the socket `fd`, and end this process."""
    control = socket.socket(fileno=fd)
    received = b""
    while not received.endswith(b"\n"):
        piece = control.recv(_REPORT_BYTES)
        if not piece:
            os._exit(1)
        received += piece
    try:
        report = _supervise(json.loads(received), control)
    except OSError as error:
        report: Ending = {"refused": str(error)}
    with suppress(OSError):
        control.sendall(json.dumps(report).encode() + b"\n")
    os._exit(0)


def _supervise(order: CommandOrder, control: socket.socket) -> Ending:
    if not is_known_machine():
        raise OSError(f"the system calls of {os.uname().machine} are not known here")
    if not order["namespaces"] and landlock_version() == 0:
        raise OSError("the kernel has no Landlock, or it is disabled")
    _prctl(_SUBREAPER, 1)
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        _become(order, theirs)
    theirs.close()
    # The command runs as the same user: it must not be able to read or trace this process.
    _prctl(_DUMPABLE, 0)
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nothing, number)
    os.close(nothing)
    listener = _start(ours)
    codes: dict[int, int] = {}
    try:
        ended = _Watch(order, pid, listener, control, codes).run()
    finally:
        # From now on, no process of the command can make another one.
        os.close(listener)
        all_ended = end_descendants(codes, seconds=_END_S)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = used.ru_utime + used.ru_stime
    return {"ended": ended, "code": codes.get(pid, -signal.SIGKILL), "cpu_s": cpu_s, "left": not all_ended}


def _start(ours: socket.socket) -> int:
    """Let the restricted process run the command; return the descriptor that supervises it. Raises `OSError`."""
    with ours:
        message, fds, _, _ = socket.recv_fds(ours, _REPORT_BYTES, 1)
        if message != _READY or not fds:
            raise OSError(message.decode(errors="replace") or "the restricted process ended before it ran the command")
        ours.sendall(_GO)
        # The socket closes when the command runs.
        if wrong := ours.recv(_REPORT_BYTES):
            os.close(fds[0])
            raise OSError(wrong.decode(errors="replace"))
    return fds[0]


class _Watch:
    """The supervision of one running command."""

    def __init__(
        self, order: CommandOrder, pid: int, listener: int, control: socket.socket, codes: dict[int, int]
    ) -> None:
        self._bounds, self._folder = order["bounds"], order["folder"]
        self._pid, self._listener, self._control, self._codes = pid, listener, control, codes
        # The most tasks: the last count, and every one that was allowed since.
        self._tasks, self._refused_at = 1, 0.0

    def run(self) -> str:
        """Supervise the command until it ends or exceeds a limit; return which limit."""
        poll = select.poll()
        exited = os.pidfd_open(self._pid)
        for fd in (self._control.fileno(), self._listener, exited):
            poll.register(fd, select.POLLIN)
        now = time.monotonic()
        seconds = self._bounds["seconds"]
        deadline = now + seconds if seconds is not None else float("inf")
        watched = self._bounds["memory_bytes"] is not None or self._bounds["disk_bytes"] > 0
        look = now + _WATCH_S if watched else float("inf")
        while True:
            wait_s = min(look, deadline) - time.monotonic()
            ready = {fd for fd, _ in poll.poll(None if wait_s == float("inf") else max(0.0, wait_s) * 1000 + 1)}
            if self._listener in ready:
                answer_fork(self._listener, self._allows_one_more())
            now = time.monotonic()
            if exited in ready:
                return "exit"
            if self._control.fileno() in ready:
                return "closed"
            if now >= deadline:
                return "time"
            if now >= look:
                if over := self._exceeded():
                    return over
                look = time.monotonic() + _WATCH_S

    def _allows_one_more(self) -> bool:
        limit = self._bounds["processes"]
        if self._tasks >= limit:
            if time.monotonic() - self._refused_at < _COUNT_S:
                return False
            reap(self._codes)
            self._tasks = find_descendants()[1]
        if self._tasks >= limit:
            self._refused_at = time.monotonic()
            return False
        self._tasks += 1
        return True

    def _exceeded(self) -> str:
        reap(self._codes)
        memory, disk = self._bounds["memory_bytes"], self._bounds["disk_bytes"]
        pids = (self._pid,) if self._bounds["processes"] == 1 or memory is None else find_descendants()[0]
        if memory is not None and resident_bytes(pids, limit=memory) > memory:
            return "memory"
        return "disk" if disk and used_bytes(self._folder, limit=disk) > disk else ""


def _become(order: CommandOrder, channel: socket.socket) -> NoReturn:
    """Restrict this process, and become the command."""
    try:
        _prctl(_PDEATHSIG, signal.SIGKILL)
        with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")  # when memory is short, the kernel ends this before a service
        _drop_capabilities()
        _prctl(_NO_NEW_PRIVS, 1)
        os.chdir(order["folder"])
        os.closerange(3, channel.fileno())
        os.closerange(channel.fileno() + 1, 1 << 16)
        landlock = landlock_version()
        program = build_filter(
            signals=order["namespaces"] or landlock >= RESTRICTS_SIGNALS,
            metadata=order["namespaces"],
            truncate=order["namespaces"] or landlock >= RESTRICTS_TRUNCATE,
        )
        writable = [order["folder"]] if order["bounds"]["disk_bytes"] else []
        if landlock:
            folder = [] if writable else [order["folder"]]
            restrict(read=[*order["read"], *folder], write=writable, devices=order["devices"])
        _limit(order["bounds"])
        listener = install_filter(program)
        socket.send_fds(channel, [_READY], [listener])
        os.close(listener)
        if channel.recv(1) == _GO:
            command = order["command"]
            os.execvpe(command[0], command, order["environment"])
    except BaseException as error:  # noqa: BLE001 - the edge of the process: the launcher reports it
        with suppress(OSError):
            channel.sendall(f"{type(error).__name__}: {error}".encode())
    os._exit(1)


def _limit(bounds: Bounds) -> None:
    limits: list[tuple[int, int | None]] = [
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
        (resource.RLIMIT_FSIZE, bounds["disk_bytes"]),
        (resource.RLIMIT_NOFILE, bounds["open_files"]),
        (resource.RLIMIT_CPU, bounds["cpu_s"]),
        (resource.RLIMIT_AS, bounds["map_bytes"]),
    ]
    for kind, value in limits:
        if value is not None:
            _, hard = resource.getrlimit(kind)
            least = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(kind, (least, least))


def _drop_capabilities() -> None:
    """Give up every capability, also the capabilities that a program of root would get."""
    for capability in range(_CAPABILITIES):
        _libc.prctl(_CAPBSET_DROP, capability, 0, 0, 0)
    _libc.prctl(_CAP_AMBIENT, 4, 0, 0, 0)  # PR_CAP_AMBIENT_CLEAR_ALL
    header = (ctypes.c_uint32 * 2)(_CAPSET_VERSION, 0)
    if _libc.capset(header, (ctypes.c_uint32 * 6)()) != 0:
        raise OSError(ctypes.get_errno(), "capset failed")


_libc: Any = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl {option}: {os.strerror(code)}")


if __name__ == "__main__":
    main(int(sys.argv[-1]))
