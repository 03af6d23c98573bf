"""A resolved job as data: a setting that this version does not have is never left out silently."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from synth.errors import NewerVersion
from synth.jobs.parse.toml import read_toml
from synth.jobs.resolve.job import Overrides, resolve_job
from synth.methods.base import TrainingJob
from synth.methods.job import TrainedJob, job_from_data, job_to_data
from synth.models import Registry

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


@pytest.mark.parametrize("job", get_args(TrainedJob), ids=lambda job: job.method)
def test_what_does_not_change_a_step_is_a_field_of_the_job(job: type[TrainingJob]):
    assert job.untrained <= {field.name for field in msgspec.structs.fields(job)}
