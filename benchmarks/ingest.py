"""The cost of uploading a dataset: CPU a megabyte, beside the least possible, and memory for 1 GB.

.venv/bin/python -m benchmarks.ingest [--megabytes 1000]. The least: sha256 of the bytes, and each line decoded into
typed messages. Exit code 1: a limit is passed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import msgspec
import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.cluster_run import RunFailed, clean_environment, running_cluster, synthctl
from synth.datasets.check import FileCheck
from synth.events import FileReady

MB_PER_CPU_S_LIMIT = 70.0
EXTRA_MB_LIMIT = 300.0
_MB = 1_000_000
_PIECE = 4 << 20
_DISTINCT = 16 * _MB
_ROUNDS = 3
_SAMPLE_S = 0.02
_UPLOAD_DEADLINE_S = 300.0
_SETTLED_WITHIN_S = 60.0
_QUIET_S = 5.0


class _Message(msgspec.Struct, gc=False):
    role: str
    content: str


class _Row(msgspec.Struct, gc=False):
    messages: list[_Message]


def main() -> int:
    """Measure, print the tables; exit code 1 when a limit is passed."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--megabytes", type=int, default=1000, help="size of the file")
    megabytes = options.parse_args().megabytes
    with tempfile.TemporaryDirectory(prefix="ingest-") as folder:
        dataset = Path(folder) / "rows.jsonl"
        write_rows(dataset, megabytes * _MB)
        console = Console()
        speeds = measure_cpu(dataset)
        console.print(_speed_table(speeds, dataset))
        peaks, seconds, cpu_s = measure_upload(dataset, Path(folder) / "cluster")
        console.print(_memory_table(peaks, dataset, seconds, cpu_s))
    slow = speeds["ours"] < MB_PER_CPU_S_LIMIT
    large = max(peak.extra for peak in peaks.values()) > EXTRA_MB_LIMIT * _MB
    return int(slow or large)


def write_rows(path: Path, size: int, *, seed: int = 0) -> None:
    """Write a file of conversations of about `size` bytes: 16 MB of different rows, repeated."""
    block = b"".join(_rows(random.Random(seed), min(size, _DISTINCT)))
    with path.open("wb") as out:
        for _ in range(max(1, size // len(block))):
            out.write(block)


def _rows(chance: random.Random, size: int) -> Iterator[bytes]:
    """Yield chats of one to three turns, 1.9 kB on average; one in ten is not ASCII."""
    words = ["the", "of", "and", "sum", "reward", "model", "step", "answer", "naturally", "7", "42"]
    words += ["".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=chance.randint(2, 11))) for _ in range(2000)]
    foreign = ["слово", "模型", "été", "größer", "答え"]
    written = 0
    while written < size:
        vocabulary = words + foreign * 100 if chance.random() < 0.1 else words
        messages = [{"role": "system", "content": "You are a careful assistant."}]
        for _ in range(chance.choice((1, 1, 2, 3))):
            for role, most in (("user", 100), ("assistant", 240)):
                messages.append(
                    {"role": role, "content": " ".join(chance.choices(vocabulary, k=chance.randint(8, most)))}
                )
        line = json.dumps({"messages": messages}, ensure_ascii=False).encode() + b"\n"
        written += len(line)
        yield line


def measure_cpu(dataset: Path) -> dict[str, float]:
    """MB per CPU second: "plain", "ours" (the same hash, and our check) and "check" alone; medians of three rounds."""
    speeds: dict[str, list[float]] = {"plain": [], "ours": [], "check": []}
    for _ in range(_ROUNDS):
        speeds["plain"].append(_speed(dataset, _plain, digest=True))
        speeds["ours"].append(_speed(dataset, _ours, digest=True))
        speeds["check"].append(_speed(dataset, _ours, digest=False))
    return {name: median(found) for name, found in speeds.items()}


def _speed(dataset: Path, read: Callable[[Iterator[bytes]], None], *, digest: bool) -> float:
    begun = time.process_time()
    sha256 = hashlib.sha256()

    def pieces() -> Iterator[bytes]:
        with dataset.open("rb") as file:
            while piece := file.read(_PIECE):
                if digest:
                    sha256.update(piece)
                yield piece

    read(pieces())
    return dataset.stat().st_size / _MB / (time.process_time() - begun)


def _plain(pieces: Iterator[bytes]) -> None:
    decode = msgspec.json.Decoder(_Row).decode
    rest = b""
    for piece in pieces:
        lines = piece.split(b"\n")
        lines[0] = rest + lines[0]
        rest = lines.pop()
        for line in lines:
            decode(line)


def _ours(pieces: Iterator[bytes]) -> None:
    check = FileCheck()
    for piece in pieces:
        check.feed(piece)
    if not isinstance(check.finish(), FileReady):
        raise RunFailed("the generated file was rejected")


@dataclass
class Peak:
    """Resident bytes of a process: before the upload, and at most."""

    before: int
    most: int = 0

    @property
    def extra(self) -> int:
        return self.most - self.before


@dataclass
class MemoryWatch:
    """Samples processes from a thread of its own until it is stopped."""

    processes: dict[str, psutil.Process]
    peaks: dict[str, Peak] = field(default_factory=dict[str, Peak])
    _stop: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> MemoryWatch:
        self.peaks = {name: Peak(p.memory_info().rss) for name, p in self.processes.items()}
        self._thread = threading.Thread(target=self._sample)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def add(self, name: str, process: psutil.Process) -> None:
        """Watch a process from its start: all of it is extra."""
        self.peaks[name] = Peak(0)
        self.processes = {**self.processes, name: process}

    def _sample(self) -> None:
        while not self._stop.wait(_SAMPLE_S):
            for name, process in self.processes.items():
                try:
                    resident = process.memory_info().rss
                except psutil.NoSuchProcess:
                    continue
                self.peaks[name].most = max(self.peaks[name].most, resident)


def measure_upload(dataset: Path, folder: Path) -> tuple[dict[str, Peak], float, dict[str, float]]:
    """Upload through a cluster until the file is ready: memory by process, seconds in all, CPU seconds by process."""
    with running_cluster(folder) as cluster:
        processes = {p.name: psutil.Process(p.pid) for p in cluster.state().processes if p.pid is not None}
        # The first upload loads what every later one finds loaded.
        small = folder / "small.jsonl"
        write_rows(small, _MB, seed=1)
        synthctl(folder, "files", "upload", str(small))
        _settle(list(processes.values()))
        before = {name: _cpu(p) for name, p in processes.items()}
        begun = time.monotonic()
        with MemoryWatch(processes) as watch:
            client = subprocess.Popen(
                [str(Path(sys.executable).parent / "synthctl"), "files", "upload", str(dataset)],
                cwd=folder,
                env=clean_environment(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
            watch.add("synthctl (whole)", psutil.Process(client.pid))
            _, report = client.communicate(timeout=_UPLOAD_DEADLINE_S)
        if client.returncode != 0:
            raise RunFailed(f"the upload ended with {client.returncode}: {report.decode()}")
        seconds = time.monotonic() - begun
        return watch.peaks, seconds, {name: _cpu(p) - before[name] for name, p in processes.items()}


def _settle(processes: list[psutil.Process]) -> None:
    """Wait until no process grows: after a cluster's start, the inference service loads its engine's libraries."""
    deadline, most, since = time.monotonic() + _SETTLED_WITHIN_S, 0, time.monotonic()
    while time.monotonic() < min(deadline, since + _QUIET_S):
        resident = sum(p.memory_info().rss for p in processes)
        if resident > most + _MB:
            most, since = resident, time.monotonic()
        time.sleep(0.1)


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def _speed_table(speeds: dict[str, float], dataset: Path) -> Table:
    table = Table(
        title=f"{dataset.stat().st_size / _MB:,.0f} MB of text, {MB_PER_CPU_S_LIMIT:.0f} MB per CPU s at least"
    )
    table.add_column("")
    table.add_column("MB per CPU s", justify="right")
    table.add_column("of plain", justify="right")
    labels = {"plain": "plain: sha256 + typed decode", "ours": "ours: sha256 + check", "check": "our check alone"}
    for name, label in labels.items():
        table.add_row(label, f"{speeds[name]:.0f}", f"{speeds[name] / speeds['plain']:.2f}")
    return table


def _memory_table(peaks: dict[str, Peak], dataset: Path, seconds: float, cpu_s: dict[str, float]) -> Table:
    megabytes = dataset.stat().st_size / _MB
    table = Table(title=f"{megabytes:,.0f} MB ready after {seconds:.1f} s; {EXTRA_MB_LIMIT:.0f} MB extra at most")
    for title in ("process", "before, MB", "peak, MB", "extra, MB", "CPU s", "MB per CPU s"):
        table.add_column(title, justify="left" if title == "process" else "right")
    for name, peak in sorted(peaks.items(), key=lambda item: -item[1].extra):
        cpu = cpu_s.get(name)
        spent = [f"{cpu:.2f}", f"{megabytes / cpu:.0f}" if cpu > 0.5 else ""] if cpu is not None else ["", ""]
        table.add_row(name, *(f"{value / _MB:.0f}" for value in (peak.before, peak.most, peak.extra)), *spent)
    return table


if __name__ == "__main__":
    sys.exit(main())
