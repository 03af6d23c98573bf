"""The cost of beginning fine-tuning on a large file: tokens a CPU second, memory, seconds, and the cost of a kill.

.venv/bin/python -m benchmarks.sft_data [--gb 3] [--processes N] [--vocabulary 4096] [--folder DIR]

A JSONL file and a tokenizer are made on the spot. One training process (the learner, as the trainer starts it) trains
three steps on a megabyte, which is the model's memory and time. Another one begins on the whole file and is killed
(SIGKILL) in the middle of tokenising; a third goes on, and trains three steps. Memory is the proportional share (PSS)
of the process and its children. Exit code 1: more than 1 GB beyond the model's, or more than a chunk a process
made again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.ingest import write_rows

_MB = 1_000_000
_EXTRA_MB_LIMIT = 1000.0
_CHUNK_BYTES = 16 << 20
_SAMPLE_S = 0.5
_KILLED_AT = 0.3
_STEPS = 3


@dataclass
class Measured:
    """A training process from its start. seconds, cpu_s: until the first step was done. peak: bytes, at most.

    progress: the bytes that were reported as tokenised, and when. tokenise_s: until the last of them.
    """

    seconds: float = 0.0
    cpu_s: float = 0.0
    peak: int = 0
    tokenise_s: float = 0.0
    progress: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])
    longest_silence_s: float = 0.0


def main() -> int:
    """Measure, print the table; exit code 1 when a limit is passed."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--gb", type=float, default=3.0, help="size of the file")
    options.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)), help="that tokenise")
    options.add_argument("--vocabulary", type=int, default=4096, help="of the tokenizer")
    options.add_argument("--folder", type=Path, help="for the file and its tokens; else the system's temporary one")
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="sft-data-", dir=chosen.folder) as made:
        return _measure_all(Path(made), int(chosen.gb * 1000 * _MB), chosen.processes, chosen.vocabulary)


def _measure_all(folder: Path, size: int, processes: int, vocabulary: int) -> int:
    small, large = folder / "small.jsonl", folder / "rows.jsonl"
    write_rows(small, _MB, seed=1)
    write_rows(large, size)
    model = make_model(folder / "model", small, vocabulary)
    size = large.stat().st_size
    base = train(model, small, folder / "small", processes)
    killed = train(model, large, folder / "large", processes, kill_at=int(_KILLED_AT * size))
    before = _chunks(folder / "large")
    went_on = train(model, large, folder / "large", processes)
    after = _chunks(folder / "large")
    again = _made_again(killed, before)
    tokens = sum(_tokens(folder / "large"))
    cpu_s = killed.cpu_s + went_on.cpu_s - 2 * base.cpu_s
    extra = max(killed.peak, went_on.peak) - base.peak
    kept = sum(1 for name, made in before.items() if after[name] == made)
    table = Table(title=f"{size / _MB:,.0f} MB of JSONL, {tokens / 1e6:,.0f} M tokens, {processes} processes")
    table.add_column("")
    table.add_column("measured", justify="right")
    for name, value in (
        ("tokens per CPU s (both attempts, without a small file's)", f"{tokens / cpu_s:,.0f}"),
        ("MB of JSONL per CPU s", f"{size / _MB / cpu_s:.2f}"),
        ("memory of the training process on 1 MB, MB (PSS)", f"{base.peak / _MB:.0f}"),
        ("memory at most, beyond that, MB", f"{extra / _MB:.0f}"),
        ("killed after, s", f"{killed.seconds:.0f}"),
        ("tokenised by then, MB of JSONL", f"{killed.progress[-1][1] / _MB:.0f}"),
        ("of that made again, MB", f"{again / _MB:.0f}"),
        ("chunks that were there and stayed", f"{kept} of {len(before)}"),
        ("from the second start to its first step, s", f"{went_on.seconds:.0f}"),
        ("longest wait for a sign of progress, s", f"{max(killed.longest_silence_s, went_on.longest_silence_s):.1f}"),
        ("on disk, MB", f"{sum(f.stat().st_size for f in (folder / 'large').rglob('*.tokens')) / _MB:.0f}"),
    ):
        table.add_row(name, value)
    Console(width=110).print(table)
    return int(extra > _EXTRA_MB_LIMIT * _MB or again > processes * 2 * _CHUNK_BYTES or kept < len(before))


def make_model(folder: Path, rows: Path, vocabulary: int) -> Path:
    """Make a tiny model with a byte-pair tokenizer of so many tokens, learnt from these rows."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from synth.local.tiny_models.qwen3 import make_tiny_qwen3

    make_tiny_qwen3(folder)
    texts = [m["content"] for line in rows.read_text().splitlines() for m in json.loads(line)["messages"]]
    loaded: Any = AutoTokenizer.from_pretrained(folder)
    tokenizer = loaded.train_new_from_iterator(texts, vocabulary)
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    model.resize_token_embeddings(-(-len(tokenizer) // 64) * 64)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def train(model: Path, dataset: Path, work: Path, processes: int, *, kill_at: int | None = None) -> Measured:
    """Run a training process for three steps, or until it has tokenised `kill_at` bytes and is killed."""
    attempt = Path(tempfile.mkdtemp(dir=_made(work)))
    start = {
        "op": "start",
        "kind": "sft",
        "config": {
            "lr": 1e-4,
            "batch_size": 8,
            "sequence_length": 2048,
            "steps": _STEPS,
            "checkpoint_every": _STEPS,
            "micro_batch_tokens": 2048,
        },
        "model_dir": str(model),
        "work_dir": str(attempt),
        # The trainer knows the digest of a blob; here a name will do.
        "dataset": {"path": str(dataset), "sha256": dataset.name},
        "tokens": {
            "folder": str(work / "tokens"),
            "max_bytes": 1 << 40,
            "processes": processes,
            "chunk_bytes": _CHUNK_BYTES,
        },
    }
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    begun = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "synth.trainer.learner"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    measured = Measured()
    watch = _Watch(psutil.Process(process.pid))
    last = begun
    try:
        process.stdin.write(json.dumps(start).encode() + b"\n")
        process.stdin.flush()
        for event in map(json.loads, process.stdout):
            now = time.monotonic()
            if event["event"] == "error":
                raise RuntimeError(event["detail"])
            if event["event"] == "progress" and event["stage"] == "tokenise":
                if not measured.progress or measured.progress[-1][1] != event["done"]:
                    measured.longest_silence_s = max(measured.longest_silence_s, now - last)
                    last = now
                measured.progress.append((now - begun, event["done"]))
                measured.tokenise_s = now - begun
                if kill_at is not None and event["done"] >= kill_at:
                    measured.cpu_s = watch.cpu_s()
                    process.kill()
                    break
            if event["event"] == "step":
                measured.cpu_s = watch.cpu_s()
                break
        measured.seconds = time.monotonic() - begun
        for _ in process.stdout if kill_at is None else ():
            pass  # to the last step: memory is watched
    finally:
        watch.stop()
        process.kill()
        process.wait()
    measured.peak = watch.peak
    return measured


class _Watch:
    """Samples the memory and the CPU time of a process and its children, from a thread of its own."""

    def __init__(self, process: psutil.Process) -> None:
        self.peak = 0
        self._process = process
        self._spent: dict[int, float] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def cpu_s(self) -> float:
        """CPU seconds so far."""
        self._look()
        return sum(self._spent.values())

    def stop(self) -> None:
        """End the sampling."""
        self._ended.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._ended.wait(_SAMPLE_S):
            self._look()

    def _look(self) -> None:
        try:
            processes = [self._process, *self._process.children(recursive=True)]
        except psutil.NoSuchProcess:
            return
        total = 0
        for process in processes:
            try:
                total += process.memory_full_info().pss
                times = process.cpu_times()
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
            self._spent[process.pid] = times.user + times.system
        self.peak = max(self.peak, total)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _chunks(work: Path) -> dict[str, tuple[int, float]]:
    """Return the complete chunks by name, with an inode and time that change if one is made again."""
    paths = sorted((work / "tokens").glob("*/[0-9]*.tokens"))
    return {path.name: (path.stat().st_ino, path.stat().st_mtime) for path in paths}


def _made_again(killed: Measured, kept: dict[str, tuple[int, float]]) -> float:
    """Return the bytes of the source that were tokenised before the kill, and are in no chunk."""
    return max(0.0, killed.progress[-1][1] - _CHUNK_BYTES * len(kept))


def _tokens(work: Path) -> Iterator[int]:
    for manifest in (work / "tokens").glob("*/chunks.json"):
        yield from (chunk["tokens"] for chunk in json.loads(manifest.read_bytes()))


if __name__ == "__main__":
    sys.exit(main())
