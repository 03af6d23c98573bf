"""The policy weights file: written whole, read back exactly, and proved tensor by tensor."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from synth.weights.durable import atomic_folder
from synth.weights.policy_file import WeightsError, merge_lora, mismatched, read_policy, tensor_digests, write_policy
from synth.weights.tensor_file import hash_file


def tensors() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {"b": torch.randn(4, 3), "a": torch.randn(5).to(torch.bfloat16), "c": torch.tensor(2.0)}


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    written = write_policy(tmp_path / "w", tensors(), kind="lora", version=7, lora={"r": 8})
    found = read_policy(tmp_path / "w")
    assert (found.kind, found.version, found.lora) == ("lora", 7, {"r": 8})
    assert found.digests == written.digests == tensor_digests(tensors())
    assert all(torch.equal(found.tensors[n], t) and found.tensors[n].dtype == t.dtype for n, t in tensors().items())
    assert written.file == hash_file(tmp_path / "w")
    assert [f.name for f in tmp_path.iterdir()] == ["w"]


def test_the_same_tensors_give_the_same_bytes(tmp_path: Path) -> None:
    write_policy(tmp_path / "one", tensors(), kind="full", version=1)
    write_policy(tmp_path / "two", dict(reversed(tensors().items())), kind="full", version=1)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_a_flipped_bit_is_found_and_the_tensor_named(tmp_path: Path) -> None:
    path = tmp_path / "w"
    write_policy(path, {"b": torch.ones(4, 3)}, kind="full", version=1)
    body = bytearray(path.read_bytes())
    body[-1] ^= 1
    path.write_bytes(body)
    with pytest.raises(WeightsError, match="'b'"):
        read_policy(path)


@pytest.mark.parametrize("keep", [4, 100, -3])
def test_a_file_that_was_cut_is_refused(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "w"
    write_policy(path, tensors(), kind="full", version=1)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(WeightsError, match="not a policy weights file"):
        read_policy(path)


def test_a_view_of_other_memory_has_the_digest_of_its_values() -> None:
    wide = torch.randn(6, 4)
    assert tensor_digests({"x": wide.T}) == tensor_digests({"x": wide.T.contiguous()})
    assert tensor_digests({"x": wide}) != tensor_digests({"x": wide.reshape(4, 6)})


def test_missing_and_unexpected_tensors_are_mismatches() -> None:
    digests = tensor_digests(tensors())
    assert mismatched(tensors(), digests) == []
    assert mismatched({"a": tensors()["a"], "d": torch.ones(1)}, digests) == ["b", "c", "d"]


@pytest.mark.parametrize(("rs", "scale"), [(False, 2.0), (True, 2 * 2**0.5)])
def test_a_merged_adapter_is_added_at_its_scale(rs: bool, scale: float) -> None:
    base = {"layer.weight": torch.zeros(3, 4, dtype=torch.bfloat16)}
    down, up = torch.randn(2, 4), torch.randn(3, 2)
    adapter = {"base_model.model.layer.lora_A.weight": down, "base_model.model.layer.lora_B.weight": up}
    merged = merge_lora(base, adapter, {"r": 2, "lora_alpha": 4, "use_rslora": rs})
    assert merged["layer.weight"].dtype == torch.float32
    assert torch.allclose(merged["layer.weight"], scale * up @ down)
    assert not base["layer.weight"].any()


def test_an_adapter_that_is_no_plain_sum_is_not_merged() -> None:
    with pytest.raises(WeightsError, match="use_dora"):
        merge_lora({}, {}, {"r": 2, "lora_alpha": 4, "use_dora": True})
    with pytest.raises(WeightsError, match="no counterpart"):
        merge_lora({}, {"base_model.model.x.lora_A.weight": torch.ones(1, 1)}, {"r": 1, "lora_alpha": 1})


def test_a_folder_appears_whole_or_leaves_nothing(tmp_path: Path) -> None:
    target = tmp_path / "model"
    with pytest.raises(FileNotFoundError), atomic_folder(target) as partial:
        (partial / "a").write_text((tmp_path / "missing").read_text())
    assert list(tmp_path.iterdir()) == []
    with atomic_folder(target) as partial:
        (partial / "a").write_text("mine")
        with atomic_folder(target) as other:
            (other / "a").write_text("first")
    assert [p.name for p in tmp_path.iterdir()] == ["model"]
    assert (target / "a").read_text() == "first"


def test_a_folder_that_cannot_be_put_in_its_place_is_an_error(tmp_path: Path) -> None:
    target = tmp_path / "model"
    with pytest.raises(FileNotFoundError), atomic_folder(target) as partial:
        partial.rmdir()
