"""A quiet organisation: it asks one thing at a time, and how long each answer takes is written down.

`python -m tests.soak.hostile.quiet URL KEY SERVICE…` asks what these services answer, in turn, and prints a line for
each request: the time, seconds, what was asked, and the status. It also adds up numbers, which takes longer if the
machine is busy. It is a process of its own, so that what the attackers
compute does not count.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.soak.hostile.target import MODEL, Target

_PAUSE_S = 0.05
_TIMEOUT_S = 60.0
_GRADER = {"type": "string_check", "name": "a", "operation": "eq", "input": "{{sample.output_text}}", "reference": "4"}
#: The work of its own that is compared with.
REFERENCE = "sum"
_NUMBERS = 500_000
#: What is asked of each service: a path, and the body that is posted to it, if any.
_QUESTIONS: dict[str, tuple[tuple[str, Any], ...]] = {
    "gateway": (
        ("/api/jobs?limit=5", None),
        ("/v1/fine_tuning/alpha/graders/run", {"grader": _GRADER, "model_sample": "4"}),
    ),
    "validator": (("/api/jobs/check", {"config": '[job]\nmodel = "a"\n'}),),
    "inference": (
        (
            "/v1/chat/completions",
            {"model": MODEL, "max_tokens": 2, "messages": [{"role": "user", "content": "2+2?"}]},
        ),
    ),
}


@dataclass
class Quiet:
    """The process, and what it has written."""

    process: subprocess.Popen[bytes]
    lines: Path
    questions: Sequence[tuple[str, Any]]

    def medians_s(self, since: float) -> dict[str, float]:
        """The median of the answers to requests that were sent after a time, by what was asked."""
        seconds: dict[str, list[float]] = {}
        for at, took, path, _ in self._answers():
            if at >= since:
                seconds.setdefault(path, []).append(took)
        return {path: statistics.median(took) for path, took in seconds.items()}

    def failures(self, since: float) -> list[str]:
        """The statuses other than 200, and the requests that had no answer, after a time."""
        return [f"{path}: {status}" for at, _, path, status in self._answers() if at >= since and status != "200"]

    def _answers(self) -> list[tuple[float, float, str, str]]:
        whole = self.lines.read_text().rpartition("\n")[0].splitlines()
        parts = (line.split(" ", 3) for line in whole)
        return [(float(at), float(seconds), path, status) for at, seconds, path, status in parts]


def start_quiet(attacked: Target, services: Sequence[str], lines: Path) -> Quiet:
    """Start the organisation's requests; whoever started it ends the process."""
    command = [sys.executable, "-u", "-m", "tests.soak.hostile.quiet", attacked.url, attacked.quiet_key, *services]
    with lines.open("wb") as out:
        process = subprocess.Popen(command, stdout=out)
    return Quiet(process, lines, _questions(services))


async def _status(http: httpx.AsyncClient, path: str, body: Any) -> str:
    if path == REFERENCE:
        sum(range(_NUMBERS))
        return "200"
    return str((await (http.get(path) if body is None else http.post(path, json=body))).status_code)


def _questions(services: Sequence[str]) -> list[tuple[str, Any]]:
    return [(REFERENCE, None), *(question for service in services for question in _QUESTIONS.get(service, ()))]


async def _ask(url: str, key: str, services: Sequence[str]) -> None:
    headers = {"Authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=_TIMEOUT_S, trust_env=False) as http:
        while True:
            for path, body in _questions(services):
                begun = time.time()
                try:
                    status = await _status(http, path, body)
                except httpx.HTTPError as error:
                    status = type(error).__name__
                sys.stdout.write(f"{begun} {time.time() - begun} {path} {status}\n")
                await asyncio.sleep(_PAUSE_S)


if __name__ == "__main__":
    asyncio.run(_ask(sys.argv[1], sys.argv[2], sys.argv[3:]))
