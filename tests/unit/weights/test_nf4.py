"""A model rounded to 4 bits: what is rounded, how far, and that both of its forms are one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError

from synth.weights import nf4
from synth.weights.policy_file import WeightsError
from synth.weights.tensor_file import load_tensors, save_tensors
from tests.unit.inference.tiny_model import save_tiny_model

# Information theory's bound for 16 levels is 4 bits; NF4's steps, as the paper prints them.
LEVELS = [-1.0, -0.6962, -0.5251, -0.3949, -0.2844, -0.1848, -0.0911, 0.0]
LEVELS += [0.0796, 0.1609, 0.2461, 0.3379, 0.4407, 0.5626, 0.7230, 1.0]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    save_tiny_model(folder)
    return folder


@pytest.fixture(scope="module")
def rounded(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rounded") / "nf4"
    nf4.write_rounded_model(source, folder)
    return folder


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_tensors(folder / "model.safetensors")[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(64, 64), (48, 40), (3, 3), (1, 1)], ids=str)
def test_each_weight_becomes_the_nearest_of_16_levels_of_its_block(shape: tuple[int, int], dtype: torch.dtype) -> None:
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    parts = nf4.encode(weight)
    found = nf4.decode(parts[""], nf4.quant_state(parts))
    assert (found.shape, found.dtype) == (weight.shape, dtype)
    levels = torch.tensor(LEVELS, dtype=torch.float64)
    for block, decoded in zip(weight.double().flatten().split(64), found.double().flatten().split(64), strict=True):
        scale = block.abs().max()
        nearest = levels[(block[:, None] / scale - levels).abs().argmin(1)]
        # The scale is itself kept in 8 bits, and half of a step between two levels may go either way.
        off = (decoded / scale - nearest).abs()
        assert off.max() < 0.03 or (off > 0.03).double().mean() < 0.05


def test_the_linear_layers_are_rounded_and_nothing_else(source: Path, rounded: Path) -> None:
    before, after = weights(source), weights(rounded)
    assert before.keys() == after.keys()
    changed = {n for n in before if not torch.equal(before[n], after[n])}
    assert changed == nf4.read_codes(rounded).keys()
    assert changed == {n for n in before if n.endswith("_proj.weight")}
    assert all(after[n].dtype == before[n].dtype for n in before)


def test_four_bits_take_four_bits(source: Path, rounded: Path) -> None:
    for name, parts in nf4.read_codes(rounded).items():
        weight = weights(source)[name]
        blocks = parts[".absmax"].numel()
        assert parts[""].numel() == weight.numel() / 2
        assert (parts[".absmax"].dtype, blocks) == (torch.uint8, weight.numel() / 64)
        assert parts[".nested_absmax"].numel() == -(-blocks // 256)


def test_what_is_served_is_what_the_four_bits_say_to_the_byte(rounded: Path) -> None:
    served = weights(rounded)
    for name, parts in nf4.read_codes(rounded).items():
        assert torch.equal(nf4.decode(parts[""], nf4.quant_state(parts)), served[name]), name


def test_a_base_that_transformers_loads_in_four_bits_is_the_same(source: Path, rounded: Path) -> None:
    """Whoever puts a downloaded adapter over its base has what the cluster serves."""
    import bitsandbytes.functional
    from bitsandbytes.nn.modules import Linear4bit
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    asked = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True)
    theirs = AutoModelForCausalLM.from_pretrained(
        source, device_map="cpu", quantization_config=asked, dtype=torch.float32
    )
    layers = {n: m for n, m in theirs.named_modules() if isinstance(m, Linear4bit)}
    served = weights(rounded)
    assert {f"{n}.weight" for n in layers} == nf4.read_codes(rounded).keys()
    for name, layer in layers.items():
        packed: Any = layer.weight
        found = bitsandbytes.functional.dequantize_4bit(packed.data, packed.quant_state)
        assert torch.equal(found, served[f"{name}.weight"]), name


def test_two_machines_round_to_the_same_bytes(source: Path, rounded: Path, tmp_path: Path) -> None:
    nf4.write_rounded_model(source, tmp_path / "again")
    for file in (path.relative_to(rounded) for path in rounded.rglob("*") if path.is_file()):
        assert (rounded / file).read_bytes() == (tmp_path / "again" / file).read_bytes(), file


def test_the_number_of_threads_does_not_show_in_the_bytes() -> None:
    """Machines have as many cores as they have, and a resumed job must find the base that it left."""
    torch.manual_seed(0)
    layers = [torch.randn(2048, 1600 + 64 * n) for n in range(6)]
    threads, found = torch.get_num_threads(), []
    try:
        for count in (1, 4):
            torch.set_num_threads(count)
            found.append([nf4.encode(layer) for layer in layers])
    finally:
        torch.set_num_threads(threads)
    for one, other in zip(*found, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_round_that_failed_leaves_nothing(source: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(source, broken)
    (broken / "z.safetensors").write_bytes(b"cut short")
    with pytest.raises(SafetensorError):
        nf4.write_rounded_model(broken, tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["broken"]


def test_a_model_in_several_files_stays_in_them(source: Path, rounded: Path, tmp_path: Path) -> None:
    shards = tmp_path / "sharded"
    shutil.copytree(source, shards, ignore=lambda *_: ["model.safetensors"])
    tensors = weights(source)
    halves = (
        {n: t for n, t in tensors.items() if ".layers.0." in n},
        {n: t for n, t in tensors.items() if ".layers.0." not in n},
    )
    for number, half in enumerate(halves, start=1):
        save_tensors(shards / f"model-{number:05}-of-00002.safetensors", half, header={"format": "pt"})
    nf4.write_rounded_model(shards, tmp_path / "out")
    found = {n: t for f in (tmp_path / "out").glob("*.safetensors") for n, t in load_tensors(f)[0].items()}
    assert found.keys() == weights(rounded).keys()
    assert all(torch.equal(found[n], t) for n, t in weights(rounded).items())
    assert nf4.read_codes(tmp_path / "out").keys() == nf4.read_codes(rounded).keys()


def test_a_folder_without_the_weights_leaves_nothing(source: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(source, broken, ignore=lambda *_: ["model.safetensors"])
    with pytest.raises(WeightsError, match="14 linear layers"):
        nf4.write_rounded_model(broken, tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["broken"]


def test_a_folder_that_was_not_rounded_is_named(source: Path) -> None:
    with pytest.raises(WeightsError, match="write_rounded_model"):
        nf4.read_codes(source)
