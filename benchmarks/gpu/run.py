"""The cost of the algorithms on one GPU, without a service: training and sampling throughput of random Qwen3 models.

    PYTHONPATH=shared:services python -m benchmarks.gpu.run [--out table.md]     # from the root of a bare checkout
    PYTHONPATH=shared:services python -m benchmarks.gpu.run --smoke              # every row, tiny, on any device

It needs torch, transformers, peft, msgspec and blake3. Weights and batches are random: nothing is downloaded, and
throughput does not depend on either. Each row runs in a process of its own, with a deadline: one that runs out of
memory, or hangs, costs its own line alone.

A row is the median of several steps after two that are not counted. Training counts all tokens of the sequences,
prompts included; sampling counts the sampled ones. MFU counts the FLOPs that the model needs, not the FLOPs that are
spent: 6 a parameter and token for full training, 4 for LoRA (a frozen weight has no gradient of its own), 2 for
sampling, and the FLOPs of attention; computing activations or log π_old again, and prompts, are overhead.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import torch

from benchmarks.gpu.bench import Bench, Device, Measured
from benchmarks.gpu.shapes import QWEN3_06B, QWEN3_4B, TINY, TINY_LOAD, Load, Shape

_ROW_DEADLINE_S = 240


@dataclass(frozen=True)
class Row:
    """The workload of one line. published: prime-rl's figures for the nearest of its runs, and their hardware."""

    name: str
    kind: Literal["sft_full", "rl_lora", "sampling"]
    shape: Shape
    load: Load
    options: dict[str, Any] = field(default_factory=dict)
    published: str = ""


_SFT_8K = Load(length=8192, sequences=8, micro_batch_tokens=32_768)
_RL_16K = Load(length=16_384, sequences=4, micro_batch_tokens=16_384)
_AGAIN = {"activation_checkpointing": True}
_ONE = {"minibatches": 1}
# prime-rl's BENCHMARKS.md of 2026-02-01: forward and backward of micro-batches, one H100.
_PRIME = {
    "sft": "26.0k tok/s, 16.8 %, 31.7 GiB",
    "rl 0.6B": "13.3k tok/s, 10.9 %, 5.1 GiB",
    "rl 4B": "6.23k tok/s, 21.7 %, 23.3 GiB",
}

ROWS = [
    Row("SFT full, 8k", "sft_full", QWEN3_06B, _SFT_8K, {}, _PRIME["sft"]),
    Row("SFT full, 8k, recomputed", "sft_full", QWEN3_06B, _SFT_8K, _AGAIN, _PRIME["sft"]),
    Row("SFT full, 8k, compiled", "sft_full", QWEN3_06B, _SFT_8K, {"compiled": True}, _PRIME["sft"]),
    Row("RL LoRA r16, 16k", "rl_lora", QWEN3_06B, _RL_16K, _ONE, _PRIME["rl 0.6B"]),
    Row("RL LoRA r16, 16k", "rl_lora", QWEN3_4B, _RL_16K, _ONE, _PRIME["rl 4B"]),
    Row("RL LoRA r16, 16k, recomputed", "rl_lora", QWEN3_4B, _RL_16K, _ONE | _AGAIN, _PRIME["rl 4B"]),
    Row("RL LoRA r16, 16k, compiled", "rl_lora", QWEN3_4B, _RL_16K, _ONE | {"compiled": True}, _PRIME["rl 4B"]),
    Row("RL LoRA r16, 16k, 4 minibatches, recomputed", "rl_lora", QWEN3_4B, _RL_16K, _AGAIN),
    Row("sampling, 256 rows of 1k + 1k", "sampling", QWEN3_06B, Load(2048, 256, 0)),
]


@dataclass(frozen=True)
class Result:
    """measured: None if the row failed, for the reason in `fault`."""

    measured: Measured | None
    fault: str = ""


def measure(row: Row, *, device: Device, steps: int, scratch: Path) -> Measured:
    """Run one row in this process. scratch: the folder in which its model is written, and removed."""
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        bench = Bench.make(Path(folder), row.shape, row.load, device=device, steps=steps, options=row.options)
        return getattr(bench, row.kind)()


def smoke(row: Row) -> Row:
    """Return the same row with a model and a load that any device is quick with."""
    return Row(row.name, row.kind, TINY, TINY_LOAD, row.options)


def table(results: dict[int, Result], rows: list[Row]) -> str:
    """Return the rows as markdown; results by the rows' indices."""
    lines = [
        "| model | run | tok/s | MFU | peak memory | attention | prime-rl, 1×H100 |",
        "|---|---|--:|--:|--:|---|---|",
    ]
    for index, result in sorted(results.items()):
        row, found = rows[index], result.measured
        if found is None:
            figures = f"{result.fault} | | | "
        else:
            mfu = "" if found.mfu is None else f"{found.mfu:.1%}"
            figures = f"{found.tokens_per_second:,.0f} | {mfu} | {found.peak_gib:.1f} GiB | {found.attention}"
        lines.append(f"| {row.shape.name} | {row.name} | {figures} | {row.published} |")
    return "\n".join(lines)


def in_own_process(index: int, options: argparse.Namespace) -> Result:
    """Measure one row in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.gpu.run", "--row", str(index), "--device", options.device]
    command += ["--steps", str(options.steps), *(["--smoke"] if options.smoke else [])]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, timeout=_ROW_DEADLINE_S, check=False, text=True)
    except subprocess.TimeoutExpired:
        return Result(None, f"not done in {_ROW_DEADLINE_S} s")
    if done.returncode:
        return Result(None, done.stdout.strip().splitlines()[-1] if done.stdout.strip() else f"exit {done.returncode}")
    return Result(Measured(**json.loads(done.stdout.strip().splitlines()[-1])))


def _one(index: int, rows: list[Row], options: argparse.Namespace) -> int:
    """Run the process of one row: it prints its figures as JSON on the last line, or the reason of its failure."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(message)s")
    logging.getLogger("synth").setLevel(logging.INFO)
    try:
        figures = measure(rows[index], device=options.device, steps=options.steps, scratch=_scratch())
    except (torch.OutOfMemoryError, MemoryError):
        print("out of memory")
        return 1
    except Exception as error:
        print(f"{type(error).__name__}: {str(error).splitlines()[0][:120]}" if str(error) else type(error).__name__)
        raise
    print(json.dumps(asdict(figures)))
    return 0


def _scratch() -> Path:
    """Return a folder in memory, if it has room for the largest model; else on the disk."""
    memory = Path("/dev/shm")
    roomy = memory.is_dir() and shutil.disk_usage(memory).free > 4 * QWEN3_4B.parameters
    return memory if roomy else Path(tempfile.gettempdir())


def main() -> int:
    """`python -m benchmarks.gpu.run`."""
    parser = argparse.ArgumentParser(description="Training and sampling throughput on this device.")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=5, help="measured steps a row")
    parser.add_argument("--row", type=int, help="measure this row alone, in this process")
    parser.add_argument("--smoke", action="store_true", help="tiny shapes: shows that every row runs")
    parser.add_argument("--out", type=Path, help="write the table to this file too")
    options = parser.parse_args()
    if options.device == "cpu" and not options.smoke:
        parser.error("there is no GPU; --smoke runs every row on tiny shapes")
    rows = [smoke(row) for row in ROWS] if options.smoke else ROWS
    if options.row is not None:
        return _one(options.row, rows, options)
    device = torch.cuda.get_device_name() if options.device == "cuda" else f"CPU, {os.cpu_count()} cores"
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "peft"))
    results: dict[int, Result] = {}
    text = ""
    for index, row in enumerate(rows):
        results[index] = in_own_process(index, options)
        print(f"{index + 1} of {len(rows)}: {row.shape.name} {row.name}: {results[index]}", file=sys.stderr, flush=True)
        # After each row, so that an early end of the program loses no finished row.
        text = f"{device}; {versions}; median of {options.steps} steps\n\n{table(results, rows)}\n"
        if options.out is not None:
            options.out.write_text(text)
    print(text)
    return int(all(result.measured is None for result in results.values()))


if __name__ == "__main__":
    sys.exit(main())
