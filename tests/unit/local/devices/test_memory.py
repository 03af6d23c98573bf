"""What `config explain` says of a job's GPU memory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from synth.cli.app import app
from synth.models.hosted_shapes import known_shape

ROOT = Path(__file__).parents[4]
FILE = str(ROOT / "configs/gpu/rl_4b.toml")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_explain_says_in_bytes_what_training_and_serving_hold() -> None:
    run = CliRunner().invoke(app, ["config", "explain", FILE, "-o", "json"])
    memory = json.loads(run.stdout)["memory"]
    shape = known_shape("Qwen/Qwen3-4B")
    assert shape is not None
    assert memory["dtype"] == "bf16"
    assert memory["total"] == sum(memory["training"].values())
    assert memory["training"]["offloaded"] == 0
    assert memory["training"]["moments"] == 8 * shape.adapter_parameters(16)
    serving, blobs = memory["serving"], memory["blobs"]
    assert (serving["weights"], serving["kv_cache_per_token"]) == (2 * shape.parameters, 144 << 10)
    # 128 rollouts at once, of one turn of 64 tokens each; 64 of them are a batch.
    assert serving["kv_cache"] == 128 * 64 * (144 << 10)
    assert blobs["published"] == 2 * shape.adapter_parameters(16)
    assert blobs["checkpoint"] == (4 + 8) * shape.adapter_parameters(16)
    assert blobs["iteration"] == blobs["published"] + blobs["checkpoint"] + blobs["batch"]


def test_explain_says_it_in_sentences_beside_the_table() -> None:
    run = CliRunner().invoke(app, ["config", "explain", FILE])
    said = " ".join(run.stderr.split())
    assert "training on one GPU in bf16 holds 13.3 GiB: weights 7.6 GiB, activations 3.8 GiB" in said
    assert "serving its base holds 7.5 GiB of weights, and 144 KiB a token of its KV cache" in said
    assert "what waits is in main memory, 7.9 GiB of training or the served weights" in said
    assert "GiB" not in run.stdout


def test_a_local_models_size_is_read_from_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / ".synth" / "models" / "Qwen" / "Qwen3-4B"
    folder.mkdir(parents=True)
    sizes = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4}
    config = {"model_type": "qwen3", "num_key_value_heads": 2, "vocab_size": 512, "head_dim": 16, **sizes}
    (folder / "config.json").write_text(json.dumps(config))
    run = CliRunner().invoke(app, ["config", "explain", FILE, "-o", "json"])
    assert json.loads(run.stdout)["memory"]["serving"]["kv_cache_per_token"] == 2 * 2 * 2 * 16 * 2


def test_nothing_is_said_of_a_model_whose_size_nobody_knows() -> None:
    run = CliRunner().invoke(app, ["config", "explain", str(ROOT / "configs/demo/rl.toml"), "-o", "json"])
    assert json.loads(run.stdout)["memory"] is None


@pytest.mark.parametrize(
    ("model", "sees", "billions"),
    [("Qwen/Qwen3-30B-A3B", False, 30.532), ("Qwen/Qwen3-VL-8B-Instruct", True, 8.767)],
)
def test_experts_and_the_vision_tower_are_in_what_is_said(model: str, sees: bool, billions: float) -> None:
    run = CliRunner().invoke(app, ["config", "explain", FILE, "--model", model, "--allow-experimental", "-o", "json"])
    memory = json.loads(run.stdout)["memory"]
    assert memory["serving"]["weights"] == pytest.approx(2e9 * billions, rel=1e-3)
    assert (memory["training"]["image_activations"] > 0) == sees
    run = CliRunner().invoke(app, ["config", "explain", FILE, "--model", model])
    assert ("image activations" in run.stderr) == sees
