"""The kinds of sandbox that this machine may have, and the requirements of each."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

import synth

Mode = Literal["bubblewrap", "landlock"]
#: The strongest first.
MODES: tuple[Mode, ...] = get_args(Mode)

_ROOM = Path(__file__).parent
_BOOT = "import sys; sys.path.insert(0, sys.argv[1]); from synth.sandbox.launcher import main; main(int(sys.argv[2]))"
#: The paths that programs need: the system's programs and libraries, the interpreter and its packages.
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/localtime", "/etc/alternatives")
_MACHINE = ("/proc/cpuinfo", "/proc/meminfo", "/sys/devices/system/cpu")
_RESTRICTIONS = [f"--unshare-{name}" for name in ("user", "ipc", "pid", "net", "uts", "cgroup-try")]
_LAUNCHER_IS_INIT = ["--as-pid-1", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


def find_bubblewrap() -> str | None:
    """Return the path of bubblewrap's program on PATH, or beside this interpreter."""
    return shutil.which("bwrap") or shutil.which("bwrap", path=os.path.dirname(sys.executable))


def readable_paths(more: Sequence[str | Path]) -> list[str]:
    """Return the paths that a command may read: programs, libraries, this interpreter with its packages, and `more`."""
    prefixes = (sys.prefix, sys.base_prefix, os.path.realpath(sys.prefix), os.path.realpath(sys.base_prefix))
    return list(dict.fromkeys([*_SYSTEM, *_MACHINE, *prefixes, *map(str, more)]))


def code_roots() -> list[str]:
    """Return the folders from which this program imports itself."""
    return [os.path.dirname(os.path.realpath(place)) for place in synth.__path__]


def launcher_command(mode: Mode, *, folder: Path, writable: bool, read: Sequence[str], fd: int) -> list[str]:
    """Return the command that starts the launcher, which reads its orders from the socket `fd`."""
    launcher = [sys.executable, "-I", "-S", "-c", _BOOT, str(_ROOM.parents[1]), str(fd)]
    if mode == "landlock":
        return launcher
    program = find_bubblewrap()
    if program is None:
        raise FileNotFoundError("bubblewrap's program, bwrap, is not installed")
    # A new /proc is mounted whole.
    bound = [path for path in [*read, str(_ROOM)] if not path.startswith("/proc/")]
    mounts = [part for path in bound for part in ("--ro-bind-try", path, path)]
    devices = [part for path in DEVICES for part in ("--dev-bind-try", path, path)]
    mounts += ["--bind" if writable else "--ro-bind", str(folder), str(folder)]
    first = [program, *_RESTRICTIONS, *_LAUNCHER_IS_INIT, "--proc", "/proc"]
    return [*first, *mounts, *devices, "--remount-ro", "/", "--", *launcher]
