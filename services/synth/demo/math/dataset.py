"""The datasets of the Math task: `python -m synth.demo.math.dataset --out math.jsonl`.

Two true ways to answer, of which the environment pays only one: 40 % of the rows work the sum out digit by digit,
60 % give a quick lower estimate. RL then has something to choose. With `--preferences` the rows are pairs of the two,
of which the worked sum is chosen: the same choice, for DPO. With `--worked` every row works its sum out: for a teacher.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from pathlib import Path

from synth.demo.math.problems import pairs, question

WORKED_SHARE = 0.4


def worked(a: int, b: int) -> str:
    """Units, then tens: digit + digit + carry = two-digit sum. `8+7+0=15; 5+6+1=12; answer 125`"""
    units = a % 10 + b % 10
    tens = a // 10 + b // 10 + units // 10
    return f"{a % 10}+{b % 10}+0={units:02d}; {a // 10}+{b // 10}+{units // 10}={tens:02d}; answer {a + b}"


def estimate(a: int, b: int) -> str:
    """Return a lower bound from the tens alone: `at least 110`."""
    return f"at least {(a // 10 + b // 10) * 10}"


def rows(count: int, *, seed: int, worked_share: float = WORKED_SHARE) -> Iterator[dict[str, object]]:
    """`count` conversations over training pairs only, the same for the same seed."""
    chance = random.Random(seed)
    train = pairs(held_out=False)
    for _ in range(count):
        a, b = chance.choice(train)
        reply = worked(a, b) if chance.random() < worked_share else estimate(a, b)
        yield {
            "messages": [
                {"role": "user", "content": question(a, b)},
                {"role": "assistant", "content": reply},
            ]
        }


def preferences(count: int, *, seed: int) -> Iterator[dict[str, object]]:
    """`count` preference pairs over training pairs only, the same for the same seed."""
    chance = random.Random(seed)
    train = pairs(held_out=False)
    for _ in range(count):
        a, b = chance.choice(train)
        yield {
            "messages": [{"role": "user", "content": question(a, b)}],
            "chosen": [{"role": "assistant", "content": worked(a, b)}],
            "rejected": [{"role": "assistant", "content": estimate(a, b)}],
        }


def main() -> None:
    parser = argparse.ArgumentParser(prog="synth.demo.math.dataset", description="Write a dataset.")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=16_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--preferences", action="store_true", help="preference pairs, for DPO")
    parser.add_argument("--worked", action="store_true", help="every row works its sum out, to train a teacher")
    options = parser.parse_args()
    share = 1.0 if options.worked else WORKED_SHARE
    made = (
        preferences(options.rows, seed=options.seed)
        if options.preferences
        else rows(options.rows, seed=options.seed, worked_share=share)
    )
    with options.out.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in made)


if __name__ == "__main__":
    main()
