"""The GPUs of this machine, without a library that would take hold of one."""

from __future__ import annotations

import os
import re
from pathlib import Path


def visible_gpus() -> list[str]:
    """Return the GPUs that a process started here may use, named as in `CUDA_VISIBLE_DEVICES`; often none.

    That variable decides if it is set; else the NVIDIA devices that the system, or the container, has.
    """
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        return [str(i) for i in range(count_device_files())]
    results: list[str] = []
    for name in named.split(","):
        # CUDA reads the list up to the first that cannot be one.
        if not name.strip() or name.strip().startswith("-"):
            break
        results.append(name.strip())
    return results


def count_device_files() -> int:
    """Return how many NVIDIA devices the system, or the container, has."""
    return sum(bool(re.fullmatch(r"nvidia\d+", device.name)) for device in Path("/dev").glob("nvidia*"))
