"""A quiet organisation: it asks one thing at a time, and how long each answer takes is written down.

`python -m tests.soak.hostile.quiet URL KEY` prints a line for each request: the time, seconds, and the status. It is a
process of its own, so that what the attackers compute does not count.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import httpx

_PAUSE_S = 0.05
_TIMEOUT_S = 60.0


@dataclass
class Quiet:
    """The process, and what it has written."""

    process: subprocess.Popen[bytes]
    lines: Path

    def median_s(self, since: float) -> float | None:
        """The median of the answers to requests that were sent after a time; None where there is none."""
        found = [seconds for at, seconds, _ in self._answers() if at >= since]
        return statistics.median(found) if found else None

    def failures(self, since: float) -> list[str]:
        """The statuses other than 200, and the requests that had no answer, after a time."""
        return [status for at, _, status in self._answers() if at >= since and status != "200"]

    def _answers(self) -> list[tuple[float, float, str]]:
        whole = self.lines.read_text().rpartition("\n")[0].splitlines()
        return [(float(at), float(seconds), status) for at, seconds, status in (line.split(" ", 2) for line in whole)]


def start_quiet(url: str, key: str, lines: Path) -> Quiet:
    """Start the organisation's requests; whoever started it ends the process."""
    with lines.open("wb") as out:
        process = subprocess.Popen([sys.executable, "-u", "-m", "tests.soak.hostile.quiet", url, key], stdout=out)
    return Quiet(process, lines)


async def _ask(url: str, key: str) -> None:
    headers = {"Authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=_TIMEOUT_S, trust_env=False) as http:
        while True:
            begun = time.time()
            try:
                status = str((await http.get("/api/jobs", params={"limit": 5})).status_code)
            except httpx.HTTPError as error:
                status = type(error).__name__
            sys.stdout.write(f"{begun} {time.time() - begun} {status}\n")
            await asyncio.sleep(_PAUSE_S)


if __name__ == "__main__":
    asyncio.run(_ask(sys.argv[1], sys.argv[2]))
