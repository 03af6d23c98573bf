"""A filter of system calls, and the supervision of the calls that make a process or a thread.

The kernel stops such a call until the supervisor answers. So the number of processes has an exact limit for every user,
root too, without a cgroup; and once the supervisor has closed the filter's descriptor, no process can be made.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import platform
import struct

from synth.sandbox import syscalls
from synth.sandbox.syscalls import EAGAIN, ENOSYS, EPERM, Numbers

_SET_MODE_FILTER, _NEW_LISTENER = 1, 1 << 3
_ALLOW, _ERRNO, _NOTIFY, _KILL = 0x7FFF0000, 0x00050000, 0x7FC00000, 0x80000000
_LOAD, _EQUAL, _GREATER, _ANY_BIT, _AND, _RETURN = 0x20, 0x15, 0x25, 0x45, 0x54, 0x06
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16
_RECEIVE, _SEND = 0xC0502100, 0xC0182101
_NOTIFICATION_BYTES, _CONTINUE = 80, 1
_NEW_NAMESPACES = 0x7E020000
_X32 = 0x40000000
_AF_UNIX, _SOCK_STREAM, _SOCK_TYPES = 1, 1, 0xF
# PR_SET_PDEATHSIG, PR_SET_MM, PR_SET_CHILD_SUBREAPER, PR_SET_PTRACER
_REFUSED_PRCTL = (1, 35, 36, 0x59616D61)
# TIOCSTI and TIOCLINUX write to a terminal as its user.
_REFUSED_IOCTL = (0x5412, 0x541C)

Instruction = tuple[int, int, int, int]


def is_known_machine() -> bool:
    """Return whether the numbers of this machine's system calls are known."""
    return platform.machine() in syscalls.ARCHITECTURES


def build_filter(*, signals: bool, metadata: bool, truncate: bool) -> bytes:
    """Return the program, as an array of `sock_filter`. Each argument allows calls that other means restrict.

    signals: they reach no process outside. metadata: mounts outside of the folder are read-only. truncate: files
    outside of the folder cannot be truncated.
    """
    architecture, column = syscalls.ARCHITECTURES[platform.machine()]
    program = [
        *_first(architecture),
        (_GREATER, 0, 1, syscalls.LAST),
        (_RETURN, 0, 0, _ERRNO | ENOSYS),
    ]

    def on(numbers: Numbers, body: list[Instruction]) -> None:
        """Run `body`, which returns, for this call."""
        number = numbers[column]
        if number is not None:
            program.extend([(_EQUAL, 0, len(body), number), *body])

    refused = dict(syscalls.REFUSED)
    refused |= {} if signals else syscalls.SIGNALS
    refused |= {} if metadata else syscalls.METADATA
    refused |= {} if truncate else syscalls.TRUNCATE
    for numbers in refused.values():
        on(numbers, [(_RETURN, 0, 0, _ERRNO | EPERM)])
    for numbers in syscalls.FORKS.values():
        on(numbers, [(_RETURN, 0, 0, _NOTIFY)])
    on(syscalls.CLONE3, [(_RETURN, 0, 0, _ERRNO | ENOSYS)])
    on(
        syscalls.CLONE,
        [
            _argument(0),
            (_ANY_BIT, 0, 1, _NEW_NAMESPACES),
            (_RETURN, 0, 0, _ERRNO | EPERM),
            (_RETURN, 0, 0, _NOTIFY),
        ],
    )
    for numbers in syscalls.OF_ITSELF.values():
        on(numbers, _allowed_if([_argument(0), (_EQUAL, 0, 1, 0)]))
    on(syscalls.PRCTL, _refused_values(0, _REFUSED_PRCTL))
    on(syscalls.IOCTL, _refused_values(1, _REFUSED_IOCTL))
    # A pair of datagram sockets could send to the address of another socket; a connected stream cannot.
    on(
        syscalls.SOCKETPAIR,
        [
            _argument(0),
            (_EQUAL, 0, 3, _AF_UNIX),
            _argument(1),
            (_AND, 0, 0, _SOCK_TYPES),
            (_EQUAL, 1, 0, _SOCK_STREAM),
            (_RETURN, 0, 0, _ERRNO | EPERM),
            (_RETURN, 0, 0, _ALLOW),
        ],
    )
    on(syscalls.SENDTO, _allowed_if([_argument(4), (_EQUAL, 0, 3, 0), _argument(4, high=True), (_EQUAL, 0, 1, 0)]))
    program.append((_RETURN, 0, 0, _ALLOW))
    return _pack(program)


def build_fork_filter() -> bytes:
    """Return a program that refuses every new process and thread."""
    architecture, column = syscalls.ARCHITECTURES[platform.machine()]
    program = _first(architecture)
    for numbers in (*syscalls.FORKS.values(), syscalls.CLONE, syscalls.CLONE3):
        if (number := numbers[column]) is not None:
            program += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ERRNO | EPERM)]
    return _pack([*program, (_RETURN, 0, 0, _ALLOW)])


def _first(architecture: int) -> list[Instruction]:
    """End a process of another architecture, and load the call's number."""
    return [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER_AT),
        (_ANY_BIT, 0, 1, _X32),
        (_RETURN, 0, 0, _ERRNO | ENOSYS),
    ]


def _pack(program: list[Instruction]) -> bytes:
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)


def _argument(index: int, *, high: bool = False) -> Instruction:
    return (_LOAD, 0, 0, _ARGUMENTS_AT + 8 * index + (4 if high else 0))


def _allowed_if(conditions: list[Instruction]) -> list[Instruction]:
    """Allow the call if the conditions hold: each jumps over the rest to the last instruction if it does not."""
    return [*conditions, (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _ERRNO | EPERM)]


def _refused_values(index: int, values: tuple[int, ...]) -> list[Instruction]:
    body = [_argument(index)]
    for value in values:
        body += [(_EQUAL, 0, 1, value), (_RETURN, 0, 0, _ERRNO | EPERM)]
    return [*body, (_RETURN, 0, 0, _ALLOW)]


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def install_filter(program: bytes, *, supervised: bool = True) -> int:
    """Apply the filter to this process and all its descendants. Raises `OSError`.

    The process must have set `PR_SET_NO_NEW_PRIVS`. Returns the descriptor of its supervision; 0 if it has none.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    x86_64, aarch64 = syscalls.SECCOMP
    number = aarch64 if platform.machine() == "aarch64" else x86_64
    argument = _Program(len(program) // 8, program)
    fd = libc.syscall(
        ctypes.c_long(number),
        ctypes.c_ulong(_SET_MODE_FILTER),
        ctypes.c_ulong(_NEW_LISTENER if supervised else 0),
        ctypes.byref(argument),
    )
    if fd < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"seccomp: {os.strerror(code)}")
    return fd


def answer_fork(listener: int, allow: bool) -> None:
    """Answer one stopped call: let it continue, or fail with EAGAIN. Its process may have ended in that time."""
    received = bytearray(_NOTIFICATION_BYTES)
    try:
        fcntl.ioctl(listener, _RECEIVE, received, True)
        (identifier,) = struct.unpack_from("=Q", received)
        answer = struct.pack("=QqiI", identifier, 0, 0 if allow else -EAGAIN, _CONTINUE if allow else 0)
        fcntl.ioctl(listener, _SEND, answer)
    except FileNotFoundError:
        return
