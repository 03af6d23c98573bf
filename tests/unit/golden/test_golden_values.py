"""What a released version stored is read by value: no field of it is lost, and none is made up.

A field that this version has added is named here, with the value that what was stored before is read with.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from synth.errors import NewerVersion
from synth.methods.base import TrainingJob
from synth.methods.job import job_from_data, job_to_data
from synth.methods.rl import RlJob
from synth.trainer.learner.checkpoint.checkpoint import CheckpointManifest
from synth.trainer.machine import MAY_DIFFER, Machine, recipe, same_recipe
from tests.golden.log import FOLDER, Line, read_lines, recorded, versions

#: By the release that did not have them yet: fields of `job.validated`, of its job by kind, of a checkpoint's recipe.
ADDED_TO_EVENTS: dict[str, dict[str, Any]] = {"0.1.0": {"continues": None}}
ADDED_TO_JOBS: dict[str, dict[str, dict[str, Any]]] = {}
ADDED_TO_FINGERPRINTS: dict[str, dict[str, Any]] = {"0.1.0": {"forwards": 1}}
ADDED_TO_RECIPES: dict[str, dict[str, dict[str, Any]]] = {}
MANIFESTS = [path.relative_to(FOLDER).as_posix() for path in sorted(FOLDER.glob("*/checkpoint-*.json"))]


def validated(release: str) -> list[Line]:
    return [line for line in read_lines(release) if line.subject.startswith("job.validated.")]


def plain(value: object) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value))


def is_read_by_value(release: str, stored: dict[str, Any]) -> bool:
    """Whether this version reads a stored job as the job that it was."""
    added = ADDED_TO_JOBS.get(release, {}).get(stored["kind"], {})
    try:
        return plain(job_to_data(job_from_data(stored))) == stored | added
    except (msgspec.ValidationError, NewerVersion):
        return False


@pytest.mark.parametrize("release", versions())
def test_validated_jobs_are_read_by_value(release: str):
    lines = validated(release)
    for line, event in zip(lines, recorded(lines), strict=True):
        assert plain(event.event) == line.data | ADDED_TO_EVENTS.get(release, {})
        assert is_read_by_value(release, line.data["job"]), line.seq
    assert {line.data["job"]["kind"] for line in lines} == {"sft", "rl", "eval"}


def test_an_unknown_and_a_missing_key_of_a_job_are_noticed():
    for line in validated("0.1.0"):
        stored = line.data["job"]
        assert not is_read_by_value("0.1.0", stored | {"more": 1})
        for name in stored.keys() - {"kind"}:
            shorter = {key: value for key, value in stored.items() if key != name}
            assert not is_read_by_value("0.1.0", shorter), name


@pytest.mark.parametrize("name", MANIFESTS)
def test_checkpoint_manifests_are_read_by_value(name: str):
    release, stored = Path(name).parts[0], json.loads((FOLDER / name).read_text())
    manifest = msgspec.json.decode(json.dumps(stored), type=CheckpointManifest)
    fingerprint = stored["state"]["fingerprint"] | ADDED_TO_FINGERPRINTS.get(release, {})
    assert plain(manifest) == stored | {"state": stored["state"] | {"fingerprint": fingerprint}}
    kind, saved = manifest.state.kind, manifest.state.config
    machine = Machine(**{field: saved[field] for field in Machine.__struct_fields__ if field in saved})
    jobs = [job_from_data(line.data["job"]) for line in validated(release)]
    of_kind = [job for job in jobs if job.kind == kind and isinstance(job, TrainingJob)]
    # The RL job of the manifest is one of the log's without its evaluation.
    of_kind += [msgspec.structs.replace(job, evaluation=None) for job in of_kind if isinstance(job, RlJob)]
    same = [job for job in of_kind if recipe(job, machine) == saved | ADDED_TO_RECIPES.get(release, {}).get(kind, {})]
    assert same, [recipe(job, machine) for job in of_kind]
    assert same_recipe(saved, same[0], machine)
    for field in saved.keys() - MAY_DIFFER:
        assert not same_recipe(saved | {field: "changed"}, same[0], machine), field


@pytest.mark.parametrize("release", versions())
def test_a_release_has_a_manifest_of_each_kind(release: str):
    assert {name for name in MANIFESTS if name.startswith(f"{release}/")} == {
        f"{release}/checkpoint-{kind}.json" for kind in ("sft", "rl")
    }
