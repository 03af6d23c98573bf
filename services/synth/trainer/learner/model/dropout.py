"""What a forward in training draws: nothing, or on a CPU numbers that belong to a micro-batch.

Then they do not depend on the order in which threads draw them.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

#: Attributes with the width of a noise on the input of experts.
_INPUT_NOISE = ("jitter_noise", "input_jitter_noise")

_key: contextvars.ContextVar[tuple[int, ...]] = contextvars.ContextVar("key")


@contextlib.contextmanager
def drawing(*key: int) -> Iterator[None]:
    """Draw the numbers of this key (seed, step, micro-batch, …) in this thread during the block."""
    token = _key.set(key)
    try:
        yield
    finally:
        _key.reset(token)


class KeyedDropout(nn.Module):
    """A dropout that draws the same numbers whenever it is computed for a micro-batch, also again in the backward."""

    def __init__(self, p: float, number: int) -> None:
        """number: of this module in its model."""
        super().__init__()
        self.p = p
        self._number = number

    def forward(self, x: Tensor) -> Tensor:
        """Set a share p of the values to 0, and scale the others."""
        if not self.training or self.p == 0:
            return x
        (seed,) = np.random.SeedSequence([k % 2**32 for k in (*_key.get(), self._number)]).generate_state(1, np.uint64)
        generator = torch.Generator().manual_seed(int(seed >> np.uint64(1)))
        return x * torch.empty_like(x).bernoulli_(1 - self.p, generator=generator).div_(1 - self.p)


def use_keyed_dropout(model: Any) -> None:
    """Replace the dropouts of a model."""
    parents = [
        (module, name)
        for module in model.modules()
        for name, child in module.named_children()
        if isinstance(child, nn.Dropout)
    ]
    for number, (parent, name) in enumerate(parents):
        setattr(parent, name, KeyedDropout(getattr(parent, name).p, number))


def disable_dropout(model: Any) -> None:
    """Leave nothing random in a forward in training."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        # Of those that call the function.
        for name, value in vars(module).items():
            if isinstance(value, float) and _is_rate(name):
                vars(module)[name] = 0.0
        if hasattr(module, "router_jitter_noise"):
            # In training the router of phimoe draws the experts; this one never trains.
            module.eval().train = lambda mode=True, module=module: module


def draws_numbers(model: Any) -> bool:
    """Return whether a forward in training draws random numbers."""
    for module in model.modules():
        rates = [value for name, value in vars(module).items() if _is_rate(name) and isinstance(value, float)]
        if any(rates) or hasattr(module, "router_jitter_noise") or (isinstance(module, nn.Dropout) and module.p > 0):
            return True
    return False


def _is_rate(name: str) -> bool:
    return name.endswith(("dropout", "_pdrop")) or name in _INPUT_NOISE
