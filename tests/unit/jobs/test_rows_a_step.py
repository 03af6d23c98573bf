"""How many rows an optimizer step of SFT has: from the keys of a file, and from its GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from synth.jobs.parse.toml import read_toml
from synth.jobs.resolve.job import Overrides, validate_job
from synth.methods.sft import SftJob
from synth.models import Registry
from tests.unit.jobs.test_resolving_jobs import SFT, resolved, sft


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    (tmp_path / "tiny-qwen3").mkdir()
    (tmp_path / "tiny-qwen3" / "config.json").write_text('{"model_type": "qwen3"}')
    return Registry(tmp_path)


@pytest.mark.parametrize(
    ("keys", "rows"),
    [
        ("", 32),
        ("batch_size = 4", 4),
        ("per_device_batch = 4\ngradient_accumulation_steps = 8", 32),
        ("gradient_accumulation_steps = 8", 8),
        ("global_batch = 64", 64),
    ],
)
def test_rows_a_step_follow_from_what_is_given(keys: str, rows: int, registry: Registry) -> None:
    assert sft(SFT + f"[hyperparameters]\n{keys}\n", registry).batch_size == rows


@pytest.mark.parametrize(
    ("keys", "rows", "why"),
    [
        ("per_device_batch = 2", 16, "2 rows a pass, 8 GPUs of [compute]"),
        ("per_device_batch = 1\ngradient_accumulation_steps = 64", 512, "1 row a pass, 64 passes a step, 8 GPUs"),
        ("gradient_accumulation_steps = 3", 24, "1 row a pass, 3 passes a step, 8 GPUs of [compute]"),
    ],
)
def test_the_gpus_of_a_file_count_in_the_rows_a_step(keys: str, rows: int, why: str, registry: Registry) -> None:
    compute = "[compute]\ngpu_type = 'H100'\ngpu_count = 4\nnodes = 2\n"
    document = read_toml(SFT + compute + f"[hyperparameters]\n{keys}\n", name="job.toml")
    found = validate_job(document, overrides=Overrides(), registry=registry)
    assert isinstance(found.job, SftJob)
    assert found.job.batch_size == rows
    assert why in found.changed["batch_size"]
    assert not [warning for warning in found.warnings if "gpu_count" in warning or "nodes" in warning]


def test_the_gpus_of_a_file_do_not_count_where_global_batch_says_the_rows(registry: Registry) -> None:
    compute = "[compute]\ngpu_count = 4\n"
    for keys in ("global_batch = 8", ""):
        found = resolved(SFT + compute + f"[hyperparameters]\n{keys}\n", registry)
        assert isinstance(found.job, SftJob)
        assert found.job.batch_size == (8 if keys else 32)
        [said] = [warning for warning in found.warnings if "gpu_count" in warning]
        assert "has no effect: [hyperparameters].global_batch is the rows of a step on all GPUs" in said
