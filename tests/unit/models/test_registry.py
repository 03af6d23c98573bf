"""Model ids: which exist, what they mean, and what an unknown one is told."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synth.errors import UserError
from synth.models import QWEN3, FineTunedId, Registry, Vision, format_finetuned, parse_finetuned


def add_model(root: Path, name: str, config: str = '{"model_type": "qwen3"}') -> None:
    (root / name).mkdir(parents=True)
    (root / name / "config.json").write_text(config)
    # Whole as a file, and without a tensor.
    (root / name / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")


def test_the_table_has_the_36_hosted_ids_and_what_each_may_do() -> None:
    assert len(QWEN3) == 36
    assert all(s.sft for s in QWEN3.values())
    assert sum(s.rl for s in QWEN3.values()) == 29
    assert all(s.rl for s in QWEN3.values() if s.vision is not None)
    assert not QWEN3["Qwen/Qwen3-32B"].rl
    assert QWEN3["Qwen/Qwen3-VL-2B-Thinking"].thinking
    assert QWEN3["Qwen/Qwen3-4B-Thinking-2507"].experimental


def test_a_size_is_read_from_the_id() -> None:
    sizes = {i: (s.parameters, s.active_parameters) for i, s in QWEN3.items()}
    assert sizes["Qwen/Qwen3-0.6B"] == (0.6, 0.6)
    assert sizes["Qwen/Qwen3-235B-A22B-Thinking-2507-FP8"] == (235, 22)
    assert sizes["Qwen/Qwen3-VL-30B-A3B-Instruct"] == (30, 3)


def test_a_vision_model_says_what_it_can_be_shown() -> None:
    spec = QWEN3["Qwen/Qwen3-VL-2B-Thinking"]
    assert spec.vision == Vision(processor_id="Qwen/Qwen3-VL-2B-Thinking", max_images_per_message=1, per_device_batch=1)
    assert re.fullmatch(spec.lora_targets, "model.visual.merger.linear_fc1")
    assert not re.fullmatch(spec.lora_targets, "model.visual.blocks.0.mlp.linear_fc1")
    assert [s.id for s in QWEN3.values() if (s.vision is not None) != ("-VL-" in s.id)] == []


def test_a_base_id_is_found_in_any_case() -> None:
    assert Registry().find("qwen/qwen3-vl-2b-instruct").id == "Qwen/Qwen3-VL-2B-Instruct"


def test_a_directory_is_a_model_by_its_name(tmp_path: Path) -> None:
    add_model(tmp_path, "tiny-qwen3")
    spec = Registry(tmp_path).find("tiny-qwen3")
    assert (spec.id, spec.path, spec.family) == ("tiny-qwen3", str(tmp_path / "tiny-qwen3"), "qwen3")


def test_a_directory_gives_a_hosted_id_its_weights(tmp_path: Path) -> None:
    add_model(tmp_path, "Qwen/Qwen3-0.6B")
    spec = Registry(tmp_path).find("Qwen/Qwen3-0.6B")
    assert spec.path == str(tmp_path / "Qwen/Qwen3-0.6B")
    assert Registry(tmp_path).bases()[0].id == "Qwen/Qwen3-0.6B"


def test_a_model_made_later_is_seen(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    with pytest.raises(UserError):
        registry.find("later")
    add_model(tmp_path, "later")
    assert registry.find("later").id == "later"


@pytest.mark.parametrize("prefix", ["ft", "fft", "peft", "qft", "rl"])
def test_a_fine_tuned_id_carries_its_base_job_and_checkpoint(prefix: str) -> None:
    spec = Registry().find(f"{prefix}:Qwen/Qwen3-0.6B:job_1:step_20")
    assert (spec.prefix, spec.base, spec.job_id, spec.checkpoint) == (prefix, "Qwen/Qwen3-0.6B", "job_1", "step_20")


@pytest.mark.parametrize("model_id", ["ft:acme:qwen/qwen3-0.6b:job_1", "ft:QWEN/Qwen3-0.6B:job_1"])
def test_the_base_of_a_fine_tuned_id_may_stand_later_and_in_any_case(model_id: str) -> None:
    assert Registry().find(model_id).id == "ft:Qwen/Qwen3-0.6B:job_1"


def test_what_has_no_weights_here_says_how_to_get_some(tmp_path: Path) -> None:
    add_model(tmp_path, "tiny-qwen3")
    registry = Registry(tmp_path)
    with pytest.raises(UserError, match="no weights on this cluster") as caught:
        registry.weights(registry.find("Qwen/Qwen3-8B"))
    assert "models alias Qwen/Qwen3-8B tiny-qwen3" in caught.value.problems[0].fix
    assert Registry(tmp_path, hub=True).weights(registry.find("Qwen/Qwen3-8B")) == "Qwen/Qwen3-8B"


def test_a_vision_model_needs_an_image_processor(tmp_path: Path) -> None:
    add_model(tmp_path, "sees", '{"model_type": "qwen3_vl"}')
    registry = Registry(tmp_path)
    with pytest.raises(UserError, match=r"vision model without an image processor.*preprocessor_config\.json"):
        registry.weights(registry.find("sees"))
    (tmp_path / "sees" / "preprocessor_config.json").write_text("{}")
    assert registry.weights(registry.find("sees")) == str(tmp_path / "sees")
    assert [spec.id for spec in registry.runnable()] == ["sees"]


def test_a_text_model_under_the_id_of_a_vision_model_is_refused(tmp_path: Path) -> None:
    add_model(tmp_path, "Qwen/Qwen3-VL-2B-Instruct", '{"model_type": "qwen3"}')
    registry = Registry(tmp_path)
    with pytest.raises(UserError, match=r"holds a model of the family qwen3, and the id is one of qwen3-vl.*qwen3_vl"):
        registry.weights(registry.find("Qwen/Qwen3-VL-2B-Instruct"))


@pytest.mark.parametrize("model_id", ["ft:job_1", "xx:Qwen/Qwen3-0.6B:job_1", "rl:Qwen/Qwen3-0.6B:", "rl:a:b:c:d", ":"])
def test_a_malformed_fine_tuned_id_is_told_its_shape(model_id: str) -> None:
    with pytest.raises(UserError, match=re.escape("<prefix>:<base>:<job_id>")):
        Registry().find(model_id)


def test_a_fine_tuned_id_of_an_unknown_base_names_the_base() -> None:
    with pytest.raises(UserError, match=re.escape("unknown model 'Qwen/Qwen3-0.6'; ")) as caught:
        Registry().find("rl:Qwen/Qwen3-0.6:job_1", where="--model")
    assert caught.value.problems[0].where == "--model"
    assert "Qwen/Qwen3-0.6B" in caught.value.problems[0].fix


@pytest.mark.parametrize("model_id", ["../../etc", "/etc", "tiny-qwen3/..", ".hidden", ""])
def test_an_id_never_leaves_the_models_folder(model_id: str, tmp_path: Path) -> None:
    add_model(tmp_path, "models/tiny-qwen3")
    add_model(tmp_path, "models/.hidden")
    with pytest.raises(UserError, match="unknown model"):
        Registry(tmp_path / "models").find(model_id)


@pytest.mark.parametrize(
    ("config", "words"), [("{", "not JSON"), ('{"model_type": "t5"}', "'t5'"), ("[]", "no model_type")]
)
def test_a_directory_that_is_no_model_of_ours_says_why(config: str, words: str, tmp_path: Path) -> None:
    add_model(tmp_path, "odd", config)
    with pytest.raises(UserError, match=words) as caught:
        Registry(tmp_path).find("odd")
    assert caught.value.problems[0].where.endswith("config.json")


@pytest.mark.parametrize("config", ["{", '{"model_type": "t5"}', "[" * 100_000])
def test_a_directory_that_is_no_model_of_ours_hides_no_other(config: str, tmp_path: Path) -> None:
    add_model(tmp_path, "odd", config)
    add_model(tmp_path, "tiny-qwen3")
    assert [s.id for s in Registry(tmp_path).bases() if s.path] == ["tiny-qwen3"]


@given(
    st.sampled_from(["ft", "fft", "peft", "qft", "rl"]),
    st.sampled_from(sorted(QWEN3)),
    st.from_regex(r"[A-Za-z0-9_.-]+", fullmatch=True),
    st.none() | st.from_regex(r"[A-Za-z0-9_.-]+", fullmatch=True),
)
def test_format_and_parse_are_inverse(prefix: str, base: str, job: str, checkpoint: str | None) -> None:
    model_id = format_finetuned(prefix, base, job, checkpoint=checkpoint)  # pyright: ignore[reportArgumentType]
    assert parse_finetuned(model_id) == FineTunedId(prefix, base, job, checkpoint)  # pyright: ignore[reportArgumentType]


@given(st.text(max_size=30))
def test_any_id_that_is_not_known_is_refused_with_its_place(model_id: str) -> None:
    with pytest.raises(UserError) as caught:
        Registry().find(f"{model_id}?")
    assert caught.value.problems[0].where == "model"
