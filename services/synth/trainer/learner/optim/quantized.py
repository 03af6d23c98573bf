"""Numbers in 8 bits by blocks: a code for each, and the largest magnitude of its block as the scale.

Source: "8-bit Optimizers via Block-wise Quantization" (arXiv 2110.02861), sections 2 and 3: dynamic tree quantization,
whose 256 values are as fine near 0 as they are near the scale.

A tensor [R, ...] is R rows, and a block is up to 256 neighbours within a row. So a shard of rows, which is what FSDP2
gives a rank, has the blocks that it has in the whole tensor, and several ranks keep the codes that one would.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

#: Numbers that share a scale.
BLOCK = 256
#: Tensors with fewer elements stay in float32, as do vectors: they are no memory, and norms and biases are sensitive.
LEAST_ELEMENTS = 4096


def is_quantized(shape: tuple[int, ...]) -> bool:
    """Return whether a tensor of this shape, of all ranks together, is kept in 8 bits."""
    return len(shape) >= 2 and functools.reduce(int.__mul__, shape) >= LEAST_ELEMENTS


def blocks_of_row(shape: tuple[int, ...]) -> int:
    """Return the number of scales in one row of a tensor of this shape."""
    return -(-functools.reduce(int.__mul__, shape[1:], 1) // BLOCK)


def encode(values: Tensor, *, signed: bool) -> tuple[Tensor, Tensor]:
    """Return codes (uint8, [R, C]) and scales (float32, [R, blocks]) of float32 values [R, C].

    signed: False for numbers that are never negative, which then have twice as many values. Of those, none but 0
    becomes 0: Adam divides by the root of its second moment, and a weight whose moment were rounded away would move by
    its first moment divided by epsilon.
    """
    rows, columns = values.shape
    blocks = -(-columns // BLOCK)
    padded = torch.nn.functional.pad(values, (0, blocks * BLOCK - columns)).view(rows, blocks, BLOCK)
    scales = padded.abs().amax(-1)
    # A block of zeros is divided by 1, not by 0.
    normalised = padded / torch.where(scales > 0, scales, 1.0)[..., None]
    _, middles = _table(signed, values.device)
    codes = torch.bucketize(normalised, middles, out_int32=True)
    if not signed:
        codes.clamp_(min=1).mul_(padded > 0)
    return codes.view(rows, -1)[:, :columns].to(torch.uint8), scales


def decode(codes: Tensor, scales: Tensor, *, signed: bool) -> Tensor:
    """Return the float32 values [R, C] of `encode`'s codes and scales."""
    table, _ = _table(signed, codes.device)
    values = table[codes.int()]
    return values.mul_(scales.repeat_interleave(BLOCK, dim=1)[:, : codes.shape[1]])


def dynamic_map(*, signed: bool) -> Tensor:
    """Return the 256 values that a code may stand for, ascending, in [-1, 1] or in [0, 1].

    For each of seven powers of ten, twice as many values as for the one below it, at the middles of equal steps from
    0.1 to 1 of it; and 0 and 1 (arXiv 2110.02861, section 2.1; appendix F for the unsigned one).
    """
    values = [0.0, 1.0]
    for i in range(7):
        edges = torch.linspace(0.1, 1, 2 ** (i if signed else i + 1) + 1)
        middles = (10 ** (i - 6) * (edges[:-1] + edges[1:]) / 2).tolist()
        values += middles + ([-value for value in middles] if signed else [])
    return torch.tensor(sorted(values))


@functools.cache
def _table(signed: bool, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the map, and the middles between its values, at which rounding goes from one to the next."""
    table = dynamic_map(signed=signed)
    return table.to(device), ((table[1:] + table[:-1]) / 2).to(device)
