"""Every job file of configs/ is accepted as it stands, and those for one GPU fit the card that their page names."""

from __future__ import annotations

from pathlib import Path

import pytest

from contracts.memory_tables import CARDS, SHARE
from synth.cli.jobs.files import Flags, read_config, validate_text
from synth.client.submission import LenientRegistry
from synth.jobs.plan import JobPlan
from synth.jobs.resolve.job import ValidationReport
from synth.local.devices.memory import job_memory
from synth.methods.base import TrainingJob
from synth.methods.rl import RlJob
from synth.methods.sft import SftJob
from synth.models.hosted_shapes import known_shape
from synth.models.memory import GIB, engine_memory

ROOT = Path(__file__).parents[3]
FILES = sorted((ROOT / "configs").glob("**/*.toml"))
ON_A_GPU = [file for file in FILES if file.parent.name == "gpu"]


def checked(file: Path, dataset: Path) -> ValidationReport:
    """What `config check` finds without a cluster."""
    dataset.write_text('{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n')
    flags = Flags(dataset=dataset if file.name.startswith(("sft", "dpo")) else None)
    _, found = validate_text(read_config(file), name=str(file), flags=flags, registry=LenientRegistry())
    return found


def name(file: Path) -> str:
    return f"{file.parent.name}/{file.name}"


@pytest.mark.parametrize("file", FILES, ids=name)
def test_a_job_file_is_accepted_and_each_of_its_keys_has_its_effect(file: Path, tmp_path: Path) -> None:
    found = checked(file, tmp_path / "rows.jsonl")
    assert found.problems == []
    assert found.warnings == []
    assert found.changed == {}
    assert found.job is not None


@pytest.mark.parametrize("file", ON_A_GPU, ids=name)
def test_a_job_file_for_one_gpu_fits_24_gb_by_turns(file: Path, tmp_path: Path) -> None:
    job = checked(file, tmp_path / "rows.jsonl").job
    assert isinstance(job, TrainingJob)
    memory = job_memory(job, tmp_path)
    assert isinstance(memory, JobPlan)
    card = CARDS["24"] * GIB
    assert memory.total <= SHARE * card
    shape = known_shape(job.base_model)
    assert shape is not None
    assert engine_memory(shape, int(card), kv_share=0.5, max_num_seqs=256).kv_tokens > 128 * 256


@pytest.mark.parametrize("size", ["0.6b", "4b"])
def test_the_rl_job_goes_on_with_what_the_sft_job_makes(size: str, tmp_path: Path) -> None:
    before, after = (checked(ROOT / f"configs/gpu/{kind}_{size}.toml", tmp_path / "a").job for kind in ("sft", "rl"))
    assert isinstance(before, SftJob)
    assert isinstance(after, RlJob)
    assert (before.base_model, before.mode) == (after.base_model, after.mode)
    if before.lora is not None and after.lora is not None:
        assert (before.lora.r, before.lora.alpha, before.lora.targets) == (
            after.lora.r,
            after.lora.alpha,
            after.lora.targets,
        )
    assert before.result_id("job_1").split(":")[0] in (ROOT / f"configs/gpu/rl_{size}.toml").read_text()
