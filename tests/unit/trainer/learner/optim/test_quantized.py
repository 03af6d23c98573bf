"""Numbers in 8 bits by blocks."""

from __future__ import annotations

import pytest
import torch

from synth.jobs.memory import LEAST_QUANTIZED, MOMENT_BLOCK
from synth.trainer.learner.optim.quantized import BLOCK, LEAST_ELEMENTS, decode, dynamic_map, encode, is_quantized


@pytest.mark.parametrize("signed", [True, False])
def test_the_values_are_those_of_bitsandbytes(signed: bool) -> None:
    from bitsandbytes.functional import create_dynamic_map

    assert torch.equal(dynamic_map(signed=signed), create_dynamic_map(signed=signed))


@pytest.mark.parametrize("signed", [True, False])
def test_each_number_becomes_the_nearest_value_of_its_block(signed: bool) -> None:
    torch.manual_seed(0)
    values = torch.randn(5, 700) * torch.logspace(-6, 3, 700)
    values = values if signed else values.abs()
    codes, scales = encode(values, signed=signed)
    assert (codes.dtype, codes.shape, scales.shape) == (torch.uint8, values.shape, (5, 3))
    table = dynamic_map(signed=signed)
    for block in range(3):
        part = slice(block * BLOCK, (block + 1) * BLOCK)
        assert torch.equal(scales[:, block], values[:, part].abs().amax(-1))
        nearest = (values[:, part, None] / scales[:, block, None, None] - table).abs().argmin(-1)
        same = decode(codes, scales, signed=signed)[:, part] == table[nearest] * scales[:, block, None]
        # Between two values either is right; and of what is never negative only 0 becomes 0.
        assert same.float().mean() > (0.99 if signed else 0.97)
    assert (decode(codes, scales, signed=signed) - values).abs().mean() < 0.02 * values.abs().mean()


def test_a_second_moment_is_never_rounded_to_zero() -> None:
    values = torch.tensor([[1.0, 1e-12, 0.0]])
    codes, scales = encode(values, signed=False)
    assert codes[0, 1] == 1
    assert decode(codes, scales, signed=False)[0, 2] == 0


def test_zeros_stay_zeros() -> None:
    for signed in (True, False):
        assert not decode(*encode(torch.zeros(3, 300), signed=signed), signed=signed).any()


def test_the_rows_of_a_shard_have_the_codes_that_they_have_in_the_whole() -> None:
    values = torch.randn(10, 300)
    whole, parts = encode(values, signed=True), [encode(part, signed=True) for part in values.split(4)]
    for i in range(2):
        assert torch.equal(whole[i], torch.cat([part[i] for part in parts]))


def test_small_tensors_and_vectors_stay_in_float32() -> None:
    assert is_quantized((64, 64))
    assert not is_quantized((63, 64))
    assert not is_quantized((100_000,))
    # The arithmetic of a job's memory knows no torch, and so has these numbers for itself.
    assert (BLOCK, LEAST_ELEMENTS) == (MOMENT_BLOCK, LEAST_QUANTIZED)
