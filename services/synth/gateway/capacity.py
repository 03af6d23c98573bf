"""The cluster's room. New jobs and files are refused before the existing ones run out of room."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from synth.errors import Problem
from synth.gateway import metrics
from synth.gateway.errors import ApiError
from synth.gateway.read_model.event_log import LogSize

_RETRY_AFTER_S = 30


@dataclass
class Capacity:
    """The cluster's room. folders: on the disks that store files and the output of jobs.

    reserve_bytes: of each of these disks; log_reserve: the share of the log's bytes; both are for jobs that run.
    log: its size at the last check. coming: the bytes of the log that running commands of this gateway may take, by
    organisation.
    """

    folders: list[Path]
    reserve_bytes: int
    log_reserve: float
    log: LogSize = field(default_factory=lambda: LogSize(0, None))
    coming: Counter[str] = field(default_factory=Counter[str])

    @property
    def log_share(self) -> int | None:
        """Return the bytes of the log that one organisation may take by default; None if the log has no limit."""
        return None if self.log.most is None else int(self.log.most * (1 - self.log_reserve) / 2)

    def note_log(self, size: LogSize) -> None:
        """Note the size of the log, and its limit."""
        self.log = size
        metrics.LOG_BYTES.set(size.used)

    def check(self, coming: int = 0) -> None:
        """Raise a 503 with `Retry-After` if there is no room. coming: bytes that will be written to a disk now."""
        for folder in self.folders:
            # The folder itself is made at its first use.
            free = shutil.disk_usage(next(path for path in (folder, *folder.parents) if path.exists())).free
            metrics.DISK_FREE.set(free)
            if free - coming < self.reserve_bytes:
                raise _full(
                    f"the cluster's disk has {free} bytes left, and {self.reserve_bytes} of them are for jobs that run",
                    "SYNTH_DISK_RESERVE_BYTES",
                )
        used, most = self.log
        if most is not None and used > most * (1 - self.log_reserve):
            raise _full(
                f"the log holds {used} bytes of {most}, and the rest is for jobs that run", "SYNTH_LOG_MAX_BYTES"
            )


def _full(what: str, setting: str) -> ApiError:
    problem = Problem(
        what=what,
        expected="room for new jobs and files",
        fix=f"try again later, or ask the operator for room (jobs and files can be deleted; {setting})",
    )
    return ApiError(503, problem.text(), type="no_room", retry_after=_RETRY_AFTER_S, problems=[problem])
