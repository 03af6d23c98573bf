"""A job that names another image processor than its model's: as good where it does the same, else refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from synth.jobs.parse.toml import read_toml
from synth.jobs.resolve.job import Overrides, resolve_job
from synth.models import Registry
from synth.verifier.models import processor_problems

SETTINGS: dict[str, Any] = {"patch_size": 16, "merge_size": 2, "size": {"shortest_edge": 1024, "longest_edge": 4096}}


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    for name, settings in (("sees", SETTINGS), ("alike", SETTINGS), ("otherwise", SETTINGS | {"patch_size": 14})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text('{"model_type": "qwen3_vl"}')
        (tmp_path / name / "preprocessor_config.json").write_text(json.dumps(settings | {"_note": name}))
    return Registry(tmp_path)


@pytest.mark.parametrize(
    ("named", "problem"),
    [
        ("sees", None),
        ("alike", None),
        ("otherwise", "'otherwise' prepares images otherwise, and 'sees' is trained and served with its own"),
        ("Qwen/Qwen3-VL-4B-Instruct", "'Qwen/Qwen3-VL-4B-Instruct' is not on this cluster"),
        ("nobody", "unknown model 'nobody'"),
    ],
)
def test_another_processor_has_to_do_the_same(registry: Registry, named: str, problem: str | None) -> None:
    text = f"""
        [algorithm]
        type = "offline"
        method = "sft"
        variety = "fft"
        [job]
        model = "sees"
        data = "file_1"
        [hyperparameters]
        n_epochs = 1
        [model]
        vision_processor_id = "{named}"
    """
    job = resolve_job(read_toml(text, name="j.toml"), overrides=Overrides(), registry=registry).job
    found = processor_problems(job, registry, where="j.toml:11 [model].vision_processor_id")
    assert [str(p) for p in found if problem is None or problem not in str(p)] == []
    assert len(found) == (problem is not None)
    assert all("vision_processor_id" in str(p) for p in found)
