"""The keys and values of running requests: one row a request, rows 0 … n-1 in use, left-aligned.

Every row writes its next token at its own position, so requests of any length share one batch without padding on the
left. Cells beyond a row's length are stale; no query attends to them: a decode step masks them, a prefill is causal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

#: The heads of one layer's keys or values, and their width.
Shape = tuple[int, int]


class LayerShapes(Cache):
    """The shapes of the keys and values that each layer of a model stores, after a forward with this as its cache."""

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.layers: dict[int, tuple[Shape, Shape]] = {}

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Note the shapes."""
        of_key, of_value = ((x.shape[1], x.shape[3]) for x in (key_states, value_states))
        self.layers[layer_idx] = (of_key, of_value)
        return key_states, value_states


class SequenceCache(Cache):
    """KV cache of S rows (`capacity`) by T positions, grown by doubling within a budget.

    Each layer's keys and values are [S, T, H, D] (H: KV heads), so that a token's keys of all heads are one contiguous
    write. The layers need not have the same shapes, and some have no keys of their own. Before each forward the batcher
    sets the cells to write (`prepare_decode`, `prepare_prefill`).
    """

    def __init__(
        self,
        *,
        layers: Mapping[int, tuple[Shape, Shape]],
        dtype: torch.dtype,
        device: torch.device,
        budget_bytes: int,
    ) -> None:
        """layers: by their index in the model, the shapes of keys and of values."""
        super().__init__(layers=[])
        self._shapes = ({i: key for i, (key, _) in layers.items()}, {i: value for i, (_, value) in layers.items()})
        self.dtype = dtype
        self._device = device
        self.budget_tokens = budget_bytes // (
            sum(heads * width for by_layer in self._shapes for heads, width in by_layer.values()) * dtype.itemsize
        )
        self.capacity = 0
        self.positions = 0
        self._keys, self._values = self._empty_stores()
        self._write_index: Tensor | None = None  # decode: the flat index of the cell of each row's new token [n]
        self._written_rows = slice(0, 0)  # prefill: the rows that are written
        self._source_rows: Tensor | None = None  # prefill: the row of the forward's batch that each of them takes
        self._attended = 0

    def reserve(self, rows: int, length: int) -> None:
        """Make room for `rows` rows of `length` positions, and keep the stored keys and values.

        The batcher admits a request only if `rows * length` stays within `budget_tokens`.
        """
        if rows <= self.capacity and length <= self.positions:
            return
        positions = _next_power_of_two(length, at_least=32)
        if rows * positions > self.budget_tokens:
            positions = length
        capacity = max(rows, min(_next_power_of_two(rows, at_least=8), self.budget_tokens // positions))
        s, t = min(capacity, self.capacity), min(positions, self.positions)
        for store, shapes in zip((self._keys, self._values), self._shapes, strict=True):
            for i, old in store.items():  # layer by layer, so that at most one layer is in memory twice
                new = self._empty(capacity, positions, shapes[i])
                new[:s, :t] = old[:s, :t]
                store[i] = new
        self.capacity, self.positions = capacity, positions

    def prepare_decode(self, lengths_N: Tensor, attended: int) -> None:
        """Let the next forward write one token a row, at `lengths_N`, and attend to the first `attended` positions."""
        n = lengths_N.shape[0]
        self._write_index = torch.arange(n, device=self._device) * self.positions + lengths_N
        self._written_rows = slice(0, n)
        self._attended = attended

    def prepare_prefill(self, rows: slice, source: Tensor | None) -> None:
        """Let the next forward fill `rows` from position 0; row i takes its row `source[i]` (None: its own)."""
        self._write_index = None
        self._written_rows = rows
        self._source_rows = source

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Store new keys and values [B, H, Q, D] for the model's attention; returns all that it attends to."""
        keys, values = self._keys[layer_idx], self._values[layer_idx]
        if self._write_index is not None:
            keys.view(-1, *keys.shape[2:]).index_copy_(0, self._write_index, key_states[:, :, 0])
            values.view(-1, *values.shape[2:]).index_copy_(0, self._write_index, value_states[:, :, 0])
            n = self._written_rows.stop
            return keys[:n, : self._attended].transpose(1, 2), values[:n, : self._attended].transpose(1, 2)
        length = key_states.shape[2]
        for store, new in ((keys, key_states), (values, value_states)):
            new_PLHD = new.transpose(1, 2)
            store[self._written_rows, :length] = new_PLHD if self._source_rows is None else new_PLHD[self._source_rows]
        return key_states, value_states

    def drop(self) -> None:
        """Free the memory; `reserve` makes an empty cache of it again."""
        self.capacity = self.positions = 0
        self._keys, self._values = self._empty_stores()

    def move(self, source: Tensor, target: Tensor, length: int) -> None:
        """Copy the first `length` positions of rows `source` onto rows `target` (index tensors, disjoint)."""
        if not self.capacity:
            return  # it was dropped, and all of it will be computed again
        for store in (*self._keys.values(), *self._values.values()):
            store[target, :length] = store[source, :length]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Raise, always: every row has its own length, and callers pass position ids."""
        raise NotImplementedError("a SequenceCache has no single length; pass position_ids")

    def _empty_stores(self) -> tuple[dict[int, Tensor], dict[int, Tensor]]:
        keys, values = ({i: self._empty(0, 0, shape) for i, shape in by_layer.items()} for by_layer in self._shapes)
        return keys, values

    def _empty(self, capacity: int, positions: int, shape: Shape) -> Tensor:
        # Zeros, not empty: attention still multiplies the values of masked positions by 0, and 0 x NaN is NaN.
        return torch.zeros((capacity, positions, *shape), dtype=self.dtype, device=self._device)


def _next_power_of_two(n: int, *, at_least: int) -> int:
    return max(at_least, 1 << (n - 1).bit_length())
