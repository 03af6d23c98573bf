"""The SFT dataset of the Colours task: `python -m task_apps.colours.dataset --out colours.jsonl`.

Two true ways to answer, of which the environment pays only one: 40 % of the rows name the colour, 60 % are vague. RL
then has something to choose, and must look to choose well.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from pathlib import Path

from task_apps.colours.pictures import HELD_OUT_FROM, colour_of, messages

NAMED_SHARE = 0.4
VAGUE = "A square somewhere."


def rows(count: int, *, seed: int, blank: bool = False) -> Iterator[dict[str, object]]:
    """`count` conversations over training seeds, the same for the same seed. blank: the pictures have no square."""
    chance = random.Random(seed)
    for _ in range(count):
        number = chance.randrange(HELD_OUT_FROM)
        reply = f"{colour_of(number)} square" if chance.random() < NAMED_SHARE else VAGUE
        yield {"messages": [*messages(number, blank=blank), {"role": "assistant", "content": reply}]}


def main() -> None:
    parser = argparse.ArgumentParser(prog="task_apps.colours.dataset", description="Write the SFT dataset.")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=4_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--blank", action="store_true", help="pictures without a square: nothing to see")
    options = parser.parse_args()
    with options.out.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows(options.rows, seed=options.seed, blank=options.blank))


if __name__ == "__main__":
    main()
