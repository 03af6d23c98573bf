"""Random number generators: seeding them, saving and restoring their state, and permutations without any state."""

from __future__ import annotations

import base64
import os
import random
from typing import Any

import numpy as np
import numpy.typing as npt
import torch


def seed_everything(seed: int, *, deterministic: bool) -> None:
    """Seed every library, and set what else decides the bytes: threads of an operation, and the choice of kernels."""
    # cuBLAS reads this when its first handle is made; later is too late.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if deterministic:
        # flash-attn's backward ignores torch's setting; transformers passes this one on to it.
        os.environ["FLASH_ATTENTION_DETERMINISTIC"] = "1"
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(deterministic)
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def permutation(n: int, *key: int) -> list[int]:
    """Return 0 … n-1 in an order that depends on n and the key alone (seed, step or epoch, …)."""
    return np.random.Generator(np.random.PCG64([k % 2**32 for k in key])).permutation(n).tolist()


class DrawOrder:
    """0 … n-1 in the order of `permutation`, computed for any range of it: 4 bytes of memory a number.

    Beyond 2^24 it is another permutation that depends on n and the key alone, and takes no memory at all: a Feistel
    network over the smallest power of 4 that is not below n, whose numbers from n on are skipped by cycle walking
    (Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002).
    """

    _LARGE = 1 << 24
    _ROUNDS = 8

    def __init__(self, n: int, *key: int) -> None:
        self._n = n
        self._order: npt.NDArray[np.int32] | None = None
        key = tuple(k % 2**32 for k in key)
        if n <= self._LARGE:
            self._order = np.arange(n, dtype=np.int32)
            np.random.Generator(np.random.PCG64(list(key))).shuffle(self._order)
            return
        self._half = np.uint64(((n - 1).bit_length() + 1) // 2)
        self._mask = np.uint64((1 << int(self._half)) - 1)
        self._keys = np.random.SeedSequence(list(key)).generate_state(self._ROUNDS, np.uint64)

    def part(self, begin: int, end: int) -> list[int]:
        """Return the numbers at the places from `begin` up to `end`, or to the last."""
        end = min(end, self._n)
        if self._order is not None:
            return self._order[begin:end].tolist()
        values = self._walk(np.arange(begin, end, dtype=np.uint64))
        while len(beyond := np.flatnonzero(values >= self._n)):
            values[beyond] = self._walk(values[beyond])
        return values.tolist()

    def _walk(self, values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        left, right = values >> self._half, values & self._mask
        for key in self._keys:
            # The finaliser of splitmix64.
            mixed = right ^ key
            mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            left, right = right, left ^ ((mixed ^ (mixed >> np.uint64(31))) & self._mask)
        return (left << self._half) | right


def reseed(*key: int) -> None:
    """Seed PyTorch's generators again, from the key alone (seed, step, rank, …)."""
    torch.manual_seed(int(np.random.SeedSequence([k % 2**32 for k in key]).generate_state(1)[0]))


def capture() -> dict[str, Any]:
    """Return the state of every generator, as JSON."""
    version, words, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "python": [version, list(words), gauss],
        "numpy": [name, np.asarray(keys).tolist(), position, has_gauss, cached],
        "torch": _encode(torch.get_rng_state()),
        # Only the state of the device that trains: another machine may have another number of devices.
        "cuda": _encode(torch.cuda.get_rng_state()) if torch.cuda.is_available() else None,
    }


def restore(state: dict[str, Any]) -> None:
    """Restore the state that `capture` returned."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, np.asarray(keys, dtype=np.uint32), position, has_gauss, cached))
    torch.set_rng_state(_decode(state["torch"]))
    if torch.cuda.is_available() and state["cuda"]:
        torch.cuda.set_rng_state(_decode(state["cuda"]))


def _encode(state: torch.Tensor) -> str:
    return base64.b64encode(state.numpy().tobytes()).decode()


def _decode(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
