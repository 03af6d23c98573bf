"""The algorithm on one page, run as a reader would run it."""

from __future__ import annotations

from pathlib import Path

import torch

from examples.one_process import run


async def test_fine_tuning_teaches_the_sum_and_reinforcement_learning_makes_the_model_prefer_it(tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    try:
        rewards = await run(tmp_path, log=lambda line: None)
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(False)
    assert rewards.base < 0.02
    assert 0.15 < rewards.sft < 0.5  # two answers in five work the sum out, the others estimate
    assert rewards.rl > rewards.sft + 0.2
