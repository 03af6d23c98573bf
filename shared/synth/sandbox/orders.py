"""The orders that a service sends to the launcher of a command, and the launcher's report."""

from __future__ import annotations

from typing import TypedDict


class Bounds(TypedDict):
    """The limits, as the launcher needs them. None: not limited."""

    seconds: float | None
    cpu_s: int | None
    map_bytes: int | None
    memory_bytes: int | None
    processes: int
    disk_bytes: int
    open_files: int


class CommandOrder(TypedDict):
    """The command to run. namespaces: whether bubblewrap has put this process into its own namespaces."""

    command: list[str]
    environment: dict[str, str]
    folder: str
    read: list[str]
    devices: list[str]
    bounds: Bounds
    namespaces: bool


class Ending(TypedDict, total=False):
    """How it ended. ended: `exit`, `time`, `memory`, `disk` or `closed`. refused: why it was not started."""

    ended: str
    code: int
    cpu_s: float
    left: bool
    refused: str
