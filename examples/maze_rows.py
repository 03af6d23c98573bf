"""The SFT dataset of `examples/maze.py`: `python -m examples.maze_rows > maze.jsonl`.

Walks at random: they teach a model how the tool is called, and not which way is out. That is left to RL.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from typing import Any

from examples.maze import TOOLS


def rows(count: int, *, seed: int) -> Iterator[dict[str, Any]]:
    """`count` walks, the same for the same seed."""
    chance = random.Random(seed)
    for _ in range(count):
        messages: list[Any] = [{"role": "user", "content": f"Find the way out of maze {chance.randrange(10)}."}]
        for ways in (("left", "right"), ("up", "down")):
            call = {"name": "go", "arguments": {"to": chance.choice(ways)}}
            messages += [{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": "Stairs."}]
        yield {"messages": messages[:-1], "tools": TOOLS}


if __name__ == "__main__":
    sys.stdout.writelines(f"{json.dumps(row)}\n" for row in rows(2000, seed=0))
