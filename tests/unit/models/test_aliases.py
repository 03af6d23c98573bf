"""A local model that stands in for a hosted one: what may, what it is called, and who knows."""

from __future__ import annotations

from pathlib import Path

import pytest

from synth.errors import UserError
from synth.models import Registry
from tests.unit.models.test_registry import add_model

BASE = "Qwen/Qwen3-0.6B"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    add_model(tmp_path, "tiny-qwen3")
    return tmp_path


def test_a_stand_in_runs_under_the_known_id_and_says_so(folder: Path) -> None:
    other_process = Registry(folder)
    Registry(folder).alias("qwen/qwen3-0.6b", "tiny-qwen3")
    spec = other_process.find(BASE)
    assert (spec.id, spec.base, spec.stand_in) == (BASE, BASE, "tiny-qwen3")
    assert other_process.weights(spec) == str(folder / "tiny-qwen3")
    assert {s.id: s.stand_in for s in other_process.runnable()} == {"tiny-qwen3": None, BASE: "tiny-qwen3"}
    made = other_process.find(f"fft:{BASE}:job_1")
    assert (made.id, made.stand_in) == (f"fft:{BASE}:job_1", "tiny-qwen3")


def test_what_may_be_done_is_what_the_known_id_allows(folder: Path) -> None:
    assert not Registry(folder).alias("Qwen/Qwen3-32B", "tiny-qwen3").rl


def test_it_can_be_taken_back(folder: Path) -> None:
    registry = Registry(folder)
    registry.alias(BASE, "tiny-qwen3")
    assert registry.unalias(BASE.upper()) == "tiny-qwen3"
    assert registry.find(BASE).path is None
    with pytest.raises(UserError, match="nothing stands in"):
        registry.unalias(BASE)


def test_another_process_sees_each_change_at_its_next_look_up(folder: Path) -> None:
    other_process = Registry(folder)
    for _ in range(3):
        assert other_process.find(BASE).stand_in is None
        Registry(folder).alias(BASE, "tiny-qwen3")
        assert other_process.find(BASE).stand_in == "tiny-qwen3"
        Registry(folder).unalias(BASE)
    add_model(folder, "tiny-llama")
    assert other_process.find("tiny-llama").path == str(folder / "tiny-llama")


def test_real_weights_that_come_later_are_what_runs(folder: Path) -> None:
    Registry(folder).alias(BASE, "tiny-qwen3")
    add_model(folder, BASE)
    spec = Registry(folder).find(BASE)
    assert (spec.path, spec.stand_in) == (str(folder / BASE), None)


def test_a_stand_in_that_is_gone_is_named(folder: Path) -> None:
    Registry(folder).alias(BASE, "tiny-qwen3")
    (folder / "tiny-qwen3" / "config.json").unlink()
    registry = Registry(folder)
    with pytest.raises(UserError, match="its stand-in 'tiny-qwen3' is gone"):
        registry.weights(registry.find(BASE))


@pytest.mark.parametrize(
    ("model_id", "stand_in", "words"),
    [
        ("Qwen/Qwen9-0.6B", "tiny-qwen3", "not the id of a hosted base"),
        (f"rl:{BASE}:job_1", "tiny-qwen3", "not the id of a hosted base"),
        ("tiny-qwen3", "tiny-qwen3", "not the id of a hosted base"),
        ("Qwen/Qwen3-1.7B", "tiny-qwen3", "has its own weights here"),
        (BASE, "tiny-qwen4", "did you mean 'tiny-qwen3'"),
        (BASE, "../tiny-qwen3", "there is no model"),
        (BASE, "sees", "is of the family qwen3-vl"),
        ("Qwen/Qwen3-VL-2B-Instruct", "tiny-qwen3", "is of the family qwen3,"),
        (BASE, "odd", "'t5'"),
    ],
)
def test_what_makes_no_sense_is_refused_and_changes_nothing(
    model_id: str, stand_in: str, words: str, folder: Path
) -> None:
    add_model(folder, "Qwen/Qwen3-1.7B")
    add_model(folder, "sees", '{"model_type": "qwen3_vl"}')
    add_model(folder, "odd", '{"model_type": "t5"}')
    registry = Registry(folder)
    with pytest.raises(UserError, match=words) as caught:
        registry.alias(model_id, stand_in)
    assert len(caught.value.problems) == 1
    assert registry.stand_ins() == {}


def test_a_damaged_list_hides_no_model_that_does_not_need_it(folder: Path) -> None:
    (folder / "aliases.json").write_text("{")
    registry = Registry(folder)
    assert registry.find("tiny-qwen3").path is not None
    assert [s.id for s in registry.runnable()] == ["tiny-qwen3"]
    with pytest.raises(UserError, match="cannot be read") as caught:
        registry.find(BASE)
    assert caught.value.problems[0].where == str(folder / "aliases.json")
