"""A model's folder that cannot be used says why, before anything is loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from synth.errors import UserError
from synth.models import Registry
from synth.models.architectures import CAUSAL_TYPES, unusual_layers

_HEADER = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
WHOLE = len(_HEADER).to_bytes(8, "little") + _HEADER + bytes(8)
INDEX = "model.safetensors.index.json"


def folder(tmp_path: Path, files: dict[str, bytes], **config: object) -> Registry:
    path = tmp_path / "model"
    path.mkdir()
    (path / "config.json").write_text(json.dumps({"model_type": "llama", **config}))
    for name, body in files.items():
        (path / name).write_bytes(body)
    return Registry(tmp_path)


def index(*names: str) -> bytes:
    return json.dumps({"weight_map": {f"tensor.{i}": name for i, name in enumerate(names)}}).encode()


def test_the_types_that_are_known_are_those_of_the_library() -> None:
    assert set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) == CAUSAL_TYPES


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "gemma3_text", "gpt_oss", "olmo3", "phi3", "mistral"])
def test_any_causal_language_model_is_found_and_whole(model_type: str, tmp_path: Path) -> None:
    registry = folder(tmp_path, {"model.safetensors": WHOLE}, model_type=model_type)
    spec = registry.find("model")
    assert (spec.family, spec.lora_targets, spec.experts) == (model_type, "all-linear", False)
    assert registry.weights(spec) == str(tmp_path / "model")


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "it has no weights in safetensors files"),
        (
            {"a.safetensors": WHOLE, INDEX: index("a.safetensors", "b.safetensors")},
            "1 of its 2 weight files are missing",
        ),
        ({INDEX: b"{"}, f"{INDEX} cannot be read"),
        ({"model.safetensors": WHOLE[:-1]}, f"is cut short: it has {len(WHOLE) - 1} of {len(WHOLE)} bytes"),
        ({"model.safetensors": WHOLE[:20]}, "is cut short: it has 20 bytes"),
        ({"model.safetensors": b""}, "is cut short: it has 0 bytes"),
    ],
)
def test_a_folder_that_is_half_downloaded_says_what_lacks(files: dict[str, bytes], words: str, tmp_path: Path) -> None:
    registry = folder(tmp_path, files)
    with pytest.raises(UserError) as caught:
        registry.weights(registry.find("model"))
    [problem] = caught.value.problems
    assert "is not whole" in problem.what
    assert words in problem.what
    assert "models pull" in problem.fix


def test_a_model_that_brings_its_own_code_is_refused(tmp_path: Path) -> None:
    registry = folder(tmp_path, {"model.safetensors": WHOLE}, model_type="mine", auto_map={"AutoConfig": "mine.Mine"})
    with pytest.raises(UserError, match=r"brings its own code \(auto_map\), which is never run.*trust_remote_code"):
        registry.find("model")


def test_code_beside_a_known_architecture_is_left_alone(tmp_path: Path) -> None:
    registry = folder(tmp_path, {"model.safetensors": WHOLE}, model_type="phi3", auto_map={"AutoConfig": "old.Phi3"})
    assert registry.find("model").family == "phi3"


def test_a_family_that_is_unknown_is_named(tmp_path: Path) -> None:
    registry = folder(tmp_path, {"model.safetensors": WHOLE}, model_type="t5")
    with pytest.raises(UserError, match=r"of type 't5', which cannot be trained here.*docs/models\.md"):
        registry.find("model")


@pytest.mark.parametrize(("kind", "key"), [("gpt_oss", "num_local_experts"), ("ernie4_5_moe", "moe_num_experts")])
def test_a_model_with_experts_is_told_from_a_dense_one(kind: str, key: str, tmp_path: Path) -> None:
    assert folder(tmp_path, {}, model_type=kind, **{key: 32}).find("model").experts
    assert Registry().find("Qwen/Qwen3-30B-A3B").experts
    assert not Registry().find("Qwen/Qwen3-8B").experts


@pytest.mark.parametrize(
    ("kind", "changes", "words"),
    [
        ("BloomConfig", {}, "no heads of keys and values"),
        ("FalconH1Config", {}, "hybrid"),
        ("Qwen3NextConfig", {}, "linear_attention"),
    ],
)
def test_layers_that_nothing_here_computes_are_named(kind: str, changes: dict[str, Any], words: str) -> None:
    assert words in (unusual_layers(getattr(transformers, kind)(**changes)) or "")
    assert unusual_layers(transformers.Qwen3Config()) is None
    assert unusual_layers(transformers.Qwen3NextConfig(), states=True) is None
