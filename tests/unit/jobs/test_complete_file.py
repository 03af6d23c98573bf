"""A resolved job, written as a file, resolves to itself: whatever it came from."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import tomlkit
from hypothesis import given, settings
from hypothesis import strategies as st

from synth.jobs.complete_file import complete_file
from synth.jobs.parse.toml import Document, read_data, read_toml
from synth.jobs.resolve.job import Overrides, ValidationReport, resolve_job, validate_job
from synth.methods.job import Job
from synth.models import Registry
from tests.unit.jobs.test_every_key_accounted_for import (
    _SCHEMAS,  # pyright: ignore[reportPrivateUsage]
    _candidates,  # pyright: ignore[reportPrivateUsage]
    _keys,  # pyright: ignore[reportPrivateUsage]
)

ROOT = Path(__file__).parents[3]
FILES = [*ROOT.glob("configs/**/*.toml"), *ROOT.glob("services/synth/cli/starters/*.toml")]
FLAGS = Overrides(training_file="file_1", examples=3, seed=7, task_url="http://127.0.0.1:9/", allow_experimental=True)


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Registry:
    models = tmp_path_factory.mktemp("models")
    for name, kind in (("tiny-qwen3", "qwen3"), ("tiny-qwen3-vl", "qwen3_vl")):
        (models / name).mkdir()
        (models / name / "config.json").write_text(f'{{"model_type": "{kind}"}}')
    return Registry(models)


def _again(report: ValidationReport, registry: Registry) -> Job:
    text = tomlkit.dumps(complete_file(report, report.values))
    return resolve_job(
        read_toml(text, name="again.toml"), overrides=Overrides(allow_experimental=True), registry=registry
    ).job


@pytest.mark.parametrize("file", FILES, ids=lambda f: "/".join(f.parts[-2:]))
@pytest.mark.parametrize("flags", [Overrides(training_file="file_1"), FLAGS], ids=["plain", "with flags"])
def test_every_job_file_of_the_repository_comes_back(file: Path, flags: Overrides, registry: Registry):
    report = validate_job(read_toml(file.read_text(), name=file.name), overrides=flags, registry=registry)
    assert not report.problems
    assert _again(report, registry) == report.job


def test_what_published_clients_sent_comes_back(registry: Registry):
    lines = (ROOT / "tests/unit/gateway/recorded_creates.jsonl").read_text().splitlines()
    bodies: list[dict[str, Any]] = [
        json.loads(line)["body"]["data"] for line in lines if "data" in json.loads(line)["body"]
    ]
    reports: list[ValidationReport] = []
    for body in bodies:
        if "config" in body:
            found = validate_job(read_data(body["config"], name="body"), overrides=FLAGS, registry=registry)
            reports += [found] if found.job else []
    assert reports
    for report in reports:
        assert _again(report, registry) == report.job


@pytest.mark.parametrize(
    ("name", "table"),
    [
        *((name, "") for name in ("rl", "sft", "dpo", "eval", "eval at the top")),
        *(("rl with an adapter", "lora"), ("rl of a model that sees", "model"), ("sft with an adapter", "lora")),
    ],
)
def test_every_value_of_every_key_comes_back(name: str, table: str, registry: Registry):
    """table: the one whose keys mean something else in a job of this sort; "" for all."""
    kind, schema, base = _SCHEMAS[name]
    tried = 0
    for path, annotation in _keys(schema, ()):
        if table and table not in path:
            continue
        for value in _candidates(annotation, path[-1]):
            data = copy.deepcopy(base)
            inner = data
            for part in path[:-1]:
                inner = inner.setdefault(part, {})
            inner[path[-1]] = value
            found = validate_job(Document("job.toml", data), overrides=Overrides(), registry=registry, kind=kind)
            if found.job is not None:
                tried += 1
                tables = Document("again.toml", complete_file(found, found.values))
                assert resolve_job(tables, overrides=Overrides(), registry=registry, kind=kind).job == found.job, path
    assert tried > (5 if table else 50)


_FREE = st.recursive(
    st.one_of(
        st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False, allow_infinity=False), st.text()
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(), inner, max_size=3)),
    max_leaves=8,
)


@given(tables=st.fixed_dictionaries({k: st.dictionaries(st.text(), _FREE, max_size=4) for k in ("env_config", "tags")}))
@settings(max_examples=50, deadline=None)
def test_whatever_is_passed_on_to_the_task_app_comes_back(tables: dict[str, Any], registry: Registry):
    data: dict[str, Any] = {
        "services": {"task_url": "http://127.0.0.1:8001"},
        "model": {"base": "tiny-qwen3"},
        "rollout": {"env_config": tables["env_config"]},
        "tags": tables["tags"],
    }
    report = validate_job(Document("job.toml", data), overrides=Overrides(), registry=registry)
    assert _again(report, registry) == report.job
