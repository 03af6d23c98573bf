"""Every key of every schema does something, or says that it does not; every value of a job has an origin."""

from __future__ import annotations

import copy
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Union, cast, get_args, get_origin

import pytest
from pydantic import BaseModel

from synth.jobs.parse.problems import table_of
from synth.jobs.parse.toml import Document, read_toml
from synth.jobs.parse.validate import Kind
from synth.jobs.resolve.job import Overrides, ValidationReport, validate_job
from synth.jobs.schema.eval import EvalConfig, FlatEvalConfig
from synth.jobs.schema.filter import FilterConfig
from synth.jobs.schema.rl import RlConfig
from synth.jobs.schema.sections import keys_of
from synth.jobs.schema.sft import SftConfig
from synth.models import Registry

_RL = {
    "services": {"task_url": "http://127.0.0.1:8001"},
    "model": {"base": "tiny-qwen3"},
    "training": {"iterations_per_epoch": 2},
    "evaluation": {"seeds": [3, 4], "every_n_iters": 1},
}
_GRADED = {
    "grader": {"type": "string_check", "name": "g", "input": "{{item.x}}", "reference": "y", "operation": "eq"},
    "job": {"data": "file_1"},
    "data": {"seeds": [*range(1, 9)], "validation_path": "file_2"},
    "model": {"base": "tiny-qwen3"},
    "training": {"iterations_per_epoch": 2},
    "evaluation": {"seeds": [3, 4], "every_n_iters": 1},
}
_SFT = {"job": {"model": "tiny-qwen3", "data": "file_1"}, "data": {"validation_path": "file_2"}}
_EVAL = {"model": "tiny-qwen3", "task_app_url": "http://127.0.0.1:8001", "seeds": [1, 2, 3]}
_FILTER = {"filter": {"db": "traces.db", "output": "rows.jsonl"}}
_SCHEMAS: dict[str, tuple[Kind, type[BaseModel], dict[str, Any]]] = {
    "rl": ("rl", RlConfig, _RL),
    "rl with a grader": ("rl", RlConfig, _GRADED),
    # What an adapter's keys do shows where there is one.
    "rl with an adapter": ("rl", RlConfig, {**_RL, "lora": {"r": 4}}),
    "rl of a model that sees": (
        "rl",
        RlConfig,
        {**_RL, "model": {"base": "Qwen/Qwen3-VL-2B-Instruct", "max_images_per_message": 2}},
    ),
    "sft": ("sft", SftConfig, _SFT),
    "dpo": ("sft", SftConfig, {**_SFT, "algorithm": {"type": "offline", "method": "dpo", "variety": "fft"}}),
    "sft with an adapter": ("sft", SftConfig, {**_SFT, "lora": {"r": 4}}),
    "eval": ("eval", EvalConfig, {"eval": _EVAL}),
    "eval at the top": ("eval", FlatEvalConfig, _EVAL),
    "filter": ("filter", FilterConfig, _FILTER),
}
#: Keys that are for telling kinds apart, or whose only allowed value is what is done anyhow.
_SETTLED = {
    # What the published client does with its own copy of a trace.
    *((*table, key) for table in ((), ("eval",)) for key in ("trace_format", "trace_db")),
    ("type",),
    ("algorithm",),
    ("training", "weight_sync_interval"),
    ("training", "weight_sync", "weight_sync_interval"),
    ("training", "weight_sync", "enable"),
    ("training", "weight_sync", "targets"),
    *((*table, key) for table in (("topology",), ("compute", "topology")) for key in ("type",)),
    *(
        (*table, key)
        for table in (("training", "validation"), ("hyperparameters",), ("hyperparameters", "parallelism"))
        for key in ("metric_for_best_model", "greater_is_better")
    ),
    ("hyperparameters", "loss_type"),
}


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Registry:
    models = tmp_path_factory.mktemp("models")
    (models / "tiny-qwen3").mkdir()
    (models / "tiny-qwen3" / "config.json").write_text('{"model_type": "qwen3"}')
    return Registry(models)


def _validate(data: dict[str, Any], registry: Registry, kind: Kind) -> ValidationReport:
    return validate_job(Document(name="job.toml", data=data), overrides=Overrides(), registry=registry, kind=kind)


def _keys(table: type[BaseModel], path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, info in keys_of(table).items():
        inner = table_of(info.annotation)
        if inner is None:
            yield (*path, key), info.annotation
        elif (*path, key) not in _SETTLED:
            yield from _keys(inner, (*path, key))


def _candidates(annotation: Any, key: str) -> list[Any]:
    """Values of a key, of which at least one is not what the job would be without it."""
    if get_origin(annotation) in (Union, types.UnionType):
        return [v for a in get_args(annotation) if a is not types.NoneType for v in _candidates(a, key)]
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    if "seeds" in key:
        return [[11, 12]]
    if key.endswith("_url") or key == "url":
        return ["http://127.0.0.1:9"]
    if annotation is bool:
        return [True, False]
    if annotation is int or "int" in str(annotation)[:24]:
        return [3, 2000]
    if annotation is float or "float" in str(annotation)[:24]:
        return [0.25, 3.0]
    if annotation is Any:
        return [{"x": 1}]
    text = str(annotation)
    if "list" in text or "tuple" in text:
        return [["text", "image"]] if key == "modalities" else [["x"]] if "str" in text else [[0.5, 0.6]]
    if "dict" in text:
        return [{"x": 1}] if "Any" in text or "int" in text else [{"x": 0.5}]
    return ["x"]


@pytest.mark.parametrize("name", list(_SCHEMAS))
def test_every_key_changes_the_job_or_is_said_to_have_no_effect(name: str, registry: Registry) -> None:
    kind, schema, base = _SCHEMAS[name]
    before = _validate(base, registry, kind)
    assert not before.problems
    silent: list[str] = []
    for path, annotation in _keys(schema, ()):
        if path in _SETTLED:
            continue
        for value in _candidates(annotation, path[-1]):
            data = copy.deepcopy(base)
            table = data
            for part in path[:-1]:
                table = table.setdefault(part, {})
            table[path[-1]] = value
            after = _validate(data, registry, kind)
            if after.problems or after.values != before.values or after.warnings != before.warnings:
                break
        else:
            silent.append(".".join(path))
    assert silent == []


@pytest.mark.parametrize("name", list(_SCHEMAS))
def test_a_null_of_a_payload_leaves_a_key_at_its_default(name: str, registry: Registry) -> None:
    kind, schema, base = _SCHEMAS[name]
    for path, _ in _keys(schema, ()):
        data = copy.deepcopy(base)
        table = data
        for part in path[:-1]:
            table = table.setdefault(part, {})
        if path[-1] in table:
            continue
        before = _validate(copy.deepcopy(data), registry, kind)
        table[path[-1]] = None
        after = _validate(data, registry, kind)
        assert (after.values, after.origins) == (before.values, before.origins), path


_WHOLE = ("tags", "env_config", "evaluation_env_config", "policy_config", "train_seeds", "rubric", "grader")


def _fields(values: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """The dotted names of a job's settings; free tables and sets of seeds are one value each."""
    for key, value in values.items():
        whole = key in _WHOLE
        if isinstance(value, dict) and not whole:
            yield from _fields(cast(dict[str, Any], value), f"{prefix}{key}.")
        elif key != "kind":
            yield prefix + key


_CONFIGS = Path(__file__).parents[3] / "configs" / "demo"


@pytest.mark.parametrize("name", list(_SCHEMAS))
def test_every_value_of_a_resolved_job_has_an_origin(name: str, registry: Registry) -> None:
    found: list[ValidationReport] = []
    if name in _SCHEMAS:
        kind, _, base = _SCHEMAS[name]
        found.append(_validate(base, registry, kind))
    if (_CONFIGS / f"{name}.toml").is_file():
        document = read_toml((_CONFIGS / f"{name}.toml").read_text(), name="job.toml")
        found.append(validate_job(document, overrides=Overrides(training_file="file_1"), registry=registry))
    for report in found:
        assert report.problems == []
        assert sorted(report.origins) == sorted(_fields(report.values))
        for origin in report.origins.values():
            assert origin in ("default", "registry") or origin.startswith(("job.toml", "--"))
        assert set(report.changed) <= set(report.origins)
