"""The shim that gives a process a wrong clock or a full disk: how it is made, and what it is told."""

from __future__ import annotations

import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path

_CONTROL = struct.Struct("qq")


def compile_shim(folder: Path) -> Path:
    """Compile `shim.c` into a folder; returns the library for `LD_PRELOAD`."""
    shim = folder / "shim.so"
    source = Path(__file__).with_name("shim.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(shim), str(source), "-ldl"], check=True)
    return shim


@dataclass
class Control:
    """What the shim in a process reads: how wrong its clock is, and whether its disk is full."""

    path: Path
    skew_s: float = 0.0
    disk_full: bool = False

    def write(self) -> None:
        """Let the process see it from now on."""
        body = _CONTROL.pack(int(self.skew_s * 1e9), int(self.disk_full))
        if self.path.exists():
            # In place: the process has mapped this very file.
            with self.path.open("r+b") as file:
                file.write(body)
        else:
            self.path.write_bytes(body)

    def environment(self, shim: Path, disk: Path) -> dict[str, str]:
        """What a process needs to hear of it. disk: the folder that is full."""
        return {"LD_PRELOAD": str(shim), "SOAK_CONTROL": str(self.path), "SOAK_DISK": str(disk)}
