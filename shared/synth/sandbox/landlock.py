"""Landlock: which files a process may read and write, and that it reaches no socket and no process outside."""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from collections.abc import Iterable

_CREATE, _ADD_RULE, _RESTRICT = 444, 445, 446
_VERSION, _PATH_BENEATH = 1, 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 1 << 1, 1 << 2, 1 << 3
_MAKE_CHAR, _MAKE_SOCK, _MAKE_BLOCK = 1 << 6, 1 << 9, 1 << 11
_TRUNCATE, _IOCTL_DEV = 1 << 14, 1 << 15
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_BIND_CONNECT_TCP = 3
_ABSTRACT_SOCKETS_AND_SIGNALS = 3
#: The kernel's version of Landlock from which on it has each.
RESTRICTS_TRUNCATE, RESTRICTS_TCP, RESTRICTS_SIGNALS = 3, 4, 6
#: Bits of file-system rights, by version.
_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}

_libc = ctypes.CDLL(None, use_errno=True)


def _call(number: int, *arguments: object) -> int:
    result = _libc.syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"Landlock: {os.strerror(code)}")
    return result


def landlock_version() -> int:
    """Return the kernel's version of Landlock; 0 if it has none, or if it is disabled."""
    try:
        return _call(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION))
    except OSError:
        return 0


def restrict(*, read: Iterable[str], write: Iterable[str], devices: Iterable[str]) -> None:
    """Restrict this process and all its descendants. Raises `OSError`.

    read: paths below which everything may be read and executed; one that does not exist is left out. write: folders
    below which everything may be done, except making devices and sockets. devices: files that may be read and written.
    The process must have set `PR_SET_NO_NEW_PRIVS`.
    """
    version = landlock_version()
    every = (1 << _RIGHTS[min(version, max(_RIGHTS))]) - 1
    attributes = struct.pack("=Q", every)
    if version >= RESTRICTS_TCP:
        attributes += struct.pack("=Q", _BIND_CONNECT_TCP)
    if version >= RESTRICTS_SIGNALS:
        attributes += struct.pack("=Q", _ABSTRACT_SOCKETS_AND_SIGNALS)
    buffer = ctypes.create_string_buffer(attributes, len(attributes))
    ruleset = _call(_CREATE, buffer, ctypes.c_size_t(len(attributes)), ctypes.c_uint32(0))
    try:
        for path in read:
            _allow(ruleset, path, _READ)
        for path in write:
            _allow(ruleset, path, every & ~(_MAKE_CHAR | _MAKE_SOCK | _MAKE_BLOCK))
        for path in devices:
            _allow(ruleset, path, every & (_READ_FILE | _WRITE_FILE | _TRUNCATE | _IOCTL_DEV))
        _call(_RESTRICT, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, PermissionError):
        return
    try:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            rights &= _OF_FILES
        rule = ctypes.create_string_buffer(struct.pack("=Qi", rights, fd), 12)
        _call(_ADD_RULE, ctypes.c_int(ruleset), ctypes.c_int(_PATH_BENEATH), rule, ctypes.c_uint32(0))
    finally:
        os.close(fd)
