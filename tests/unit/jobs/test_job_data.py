"""A resolved job as data: a setting that this version does not have is never left out silently."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from synth.errors import NewerVersion
from synth.jobs.job_data import job_from_data, job_to_data
from synth.jobs.parse.toml import read_toml
from synth.jobs.resolve.job import Overrides, resolve_job
from synth.jobs.resolved import RlJob, SftJob
from synth.models import Registry
from synth.trainer.owner.learner_config import build_train_config
from synth.trainer.settings import TrainerSettings

ROOT = Path(__file__).parents[3]
SFT = ROOT / "configs" / "demo" / "sft.toml"
RL = ROOT / "configs" / "demo" / "rl.toml"


def data_of(file: Path, models: Path) -> dict[str, Any]:
    folder = models / "tiny-qwen3"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text('{"model_type": "qwen3"}')
    overrides = Overrides(model="tiny-qwen3", task_url="http://127.0.0.1:1", training_file="file_1")
    job = resolve_job(read_toml(file.read_text(), name=file.name), overrides=overrides, registry=Registry(models)).job
    return job_to_data(job)


def settings_in(data: Any, place: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the tables of settings; tags, and what is passed on to a task app, may have any key."""
    if isinstance(data, dict):
        yield place, data
        for key, value in data.items():
            if key not in ("env_config", "policy_config", "evaluation_env_config", "tags"):
                yield from settings_in(value, f"{place}.{key}" if place else key)


@pytest.mark.parametrize("file", [SFT, RL], ids=["sft", "rl"])
def test_a_setting_that_this_version_does_not_have_is_refused_wherever_it_is(file: Path, tmp_path: Path):
    data = data_of(file, tmp_path)
    assert job_to_data(job_from_data(data)) == data
    places = [place for place, _ in settings_in(data)]
    assert len(places) >= 2
    for place in places:
        changed = msgspec.json.decode(msgspec.json.encode(data))
        (table,) = [table for at, table in settings_in(changed) if at == place]
        table["made_up"] = 1
        with pytest.raises(NewerVersion, match=f"no setting {place}{'.' if place else ''}made_up,"):
            job_from_data(changed)


@pytest.mark.parametrize("file", [SFT, RL], ids=["sft", "rl"])
def test_the_training_process_takes_every_setting_that_no_other_part_reads(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    job = job_from_data(data_of(file, tmp_path))
    assert isinstance(job, SftJob | RlJob)
    build_train_config(job, TrainerSettings())
    as_data = msgspec.to_builtins
    monkeypatch.setattr(msgspec, "to_builtins", lambda value: as_data(value) | {"made_up": 1})
    with pytest.raises(msgspec.ValidationError, match="made_up"):
        build_train_config(job, TrainerSettings())
