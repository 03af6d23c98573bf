"""What leaves the trainer is what was trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from synth.methods.base import LoraSettings
from synth.trainer.errors import TrainingFailed
from synth.trainer.learner.model.policy import Policy, load_policy
from synth.trainer.learner.rl import RlTrainer
from synth.weights.policy_file import read_policy
from tests.unit.inference.tiny_model import plain_logprobs
from tests.unit.trainer.batches import random_batch
from tests.unit.trainer.jobs import OPEN_GATES, machine_in, rl_job

PROMPT, SAMPLED = [5, 6, 7, 8], [9, 10, 11, 12, 13]
LORA: dict[str, Any] = {"mode": "lora", "lr": 1e-2}


def trained(model_dir: Path, *, adapter_dir: Path | None = None, **changes: Any) -> Policy:
    machine, job = machine_in(changes), rl_job(**OPEN_GATES, **changes)
    torch.manual_seed(0)  # an adapter starts from random numbers
    policy = load_policy(model_dir, job, machine, adapter_dir=adapter_dir, dropout=False)
    RlTrainer(policy, job).step(random_batch(1))
    return policy


def scores(model: Any) -> torch.Tensor:
    return plain_logprobs(model.eval(), PROMPT, SAMPLED, ban_end=False)


def loaded(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


@pytest.mark.parametrize("mode", ["full", "lora"])
def test_a_written_model_loads_elsewhere_and_scores_the_same(model_dir: Path, tmp_path: Path, mode: str) -> None:
    policy = trained(model_dir, mode=mode, lr=1e-2, adapter_base="Qwen/Qwen3-0.6B")
    policy.write_model(tmp_path / "out")
    if mode == "full":
        found = loaded(tmp_path / "out")
    else:
        from peft import PeftModel

        found = PeftModel.from_pretrained(loaded(model_dir), tmp_path / "out")
        config = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
        assert config["base_model_name_or_path"] == "Qwen/Qwen3-0.6B"
        assert str(model_dir) not in json.dumps(config)
    assert torch.allclose(scores(found), scores(policy.model), atol=1e-6)
    assert not torch.allclose(scores(found), scores(loaded(model_dir)), atol=1e-3)


@pytest.mark.parametrize("mode", ["full", "lora"])
def test_a_written_model_has_its_tokenizer_and_template(model_dir: Path, tmp_path: Path, mode: str) -> None:
    from transformers import AutoTokenizer

    trained(model_dir, mode=mode).write_model(tmp_path / "out")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.chat_template == AutoTokenizer.from_pretrained(model_dir).chat_template


@pytest.mark.parametrize("mode", ["full", "lora"])
def test_serving_weights_load_into_a_running_engine(model_dir: Path, tmp_path: Path, mode: str) -> None:
    policy = trained(model_dir, mode=mode, lr=1e-2)
    policy.write_serving_weights(tmp_path / "w", version=1)
    found = read_policy(tmp_path / "w")
    engine = loaded(model_dir)
    if mode == "full":
        assert "lm_head.weight" not in found.tensors  # tied
        assert engine.load_state_dict(found.tensors, strict=False).unexpected_keys == []
    else:
        from peft import LoraConfig, get_peft_model, set_peft_model_state_dict

        assert found.lora is not None
        engine = get_peft_model(engine, LoraConfig(**{k: found.lora[k] for k in ("r", "lora_alpha", "target_modules")}))
        set_peft_model_state_dict(engine, found.tensors)
    assert torch.allclose(scores(engine), scores(policy.model), atol=1e-6)


def test_bf16_is_served_from_float32_masters(model_dir: Path, tmp_path: Path) -> None:
    policy = trained(model_dir, dtype="bf16")
    assert {p.dtype for p in policy.trainable_parameters().values()} == {torch.float32}
    policy.write_serving_weights(tmp_path / "w", version=1)
    assert {t.dtype for t in read_policy(tmp_path / "w").tensors.values()} == {torch.bfloat16}
    policy.write_model(tmp_path / "out")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "bfloat16"


def test_an_adapter_with_the_same_rank_and_targets_is_continued(model_dir: Path, tmp_path: Path) -> None:
    first = trained(model_dir, **LORA)
    first.write_model(tmp_path / "adapter")
    again = load_policy(model_dir, rl_job(**LORA), adapter_dir=tmp_path / "adapter", dropout=False)
    assert torch.allclose(scores(again.model), scores(first.model), atol=1e-6)
    assert again.trainable_parameters().keys() == first.trainable_parameters().keys()


def test_an_adapter_with_another_rank_is_refused_for_lora(model_dir: Path, tmp_path: Path) -> None:
    trained(model_dir, **LORA).write_model(tmp_path / "adapter")
    job = rl_job(**LORA, lora=LoraSettings(r=4))
    with pytest.raises(TrainingFailed, match="rank 16") as caught:
        load_policy(model_dir, job, adapter_dir=tmp_path / "adapter")
    assert caught.value.code == "adapter_differs"


def test_a_full_policy_from_an_adapter_starts_from_the_merged_weights(model_dir: Path, tmp_path: Path) -> None:
    first = trained(model_dir, **LORA)
    first.write_model(tmp_path / "adapter")
    merged = load_policy(model_dir, rl_job(), adapter_dir=tmp_path / "adapter")
    assert torch.allclose(scores(merged.model), scores(first.model), atol=1e-5)


def test_rl_has_no_dropout(model_dir: Path) -> None:
    job = rl_job(**LORA, lora=LoraSettings(dropout=0.5))
    policy = load_policy(model_dir, job, dropout=False)
    assert all(m.p == 0 for m in policy.model.modules() if isinstance(m, torch.nn.Dropout))


def test_activation_checkpointing_gives_the_same_weights(model_dir: Path) -> None:
    ends = [trained(model_dir, activation_checkpointing=on, **LORA).trainable_state_dict() for on in (False, True)]
    assert all(torch.allclose(ends[0][n], ends[1][n], atol=1e-6) for n in ends[0])


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TrainingFailed, match="cannot be loaded"):
        load_policy(tmp_path, rl_job())


def test_the_lm_head_is_not_a_lora_target(model_dir: Path) -> None:
    with pytest.raises(TrainingFailed, match="LM head"):
        load_policy(model_dir, rl_job(**LORA, lora=LoraSettings(targets=["lm_head"])))
