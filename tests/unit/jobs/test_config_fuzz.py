"""Whatever the file holds, the answer is a job or a UserError whose every problem names its place."""

from __future__ import annotations

import copy
import json
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from synth.errors import UserError
from synth.jobs.parse.toml import read_data, read_toml, scan_lines
from synth.jobs.parse.validate import Kind
from synth.jobs.resolve.job import Overrides, resolve_job, validate_job
from synth.jobs.schema.eval import EvalSection, FlatEvalConfig
from synth.jobs.schema.filter import FilterConfig, FilterSection
from synth.jobs.schema.rl import EvaluationSection, ModelSection, RlConfig, RolloutSection, TrainingSection
from synth.jobs.schema.sections import keys_of
from synth.jobs.schema.sft import HyperparametersSection, SftConfig
from synth.methods.job import job_to_data
from synth.models import Registry

_REGISTRY = Registry(None)
_FLAGS = Overrides(model="Qwen/Qwen3-0.6B", training_file="file_1")
_CONFIGS = Path(__file__).parents[3] / "configs" / "demo"
_GOOD = {name: tomllib.loads((_CONFIGS / f"{name}.toml").read_text()) for name in ("sft", "rl", "eval")}
_GOOD["filter"] = {"filter": {"db": "traces.db", "output": "rows.jsonl"}}
_KEYS = sorted(
    {name for model in (RlConfig, SftConfig, FlatEvalConfig, FilterConfig, FilterSection) for name in keys_of(model)}
    | {"iterations_per_epoch", "learning_rate", "seeds", "policy_config", "base", "source", "n_epochs", "x", "a.b", "é"}
)
_LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.sampled_from(["", "Qwen/Qwen3-0.6B", "rl:x:y", "http://x", "0-99", "lora", "online", "offline"]),
    st.text(max_size=8),
)
_VALUES = st.recursive(
    _LEAVES,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(_KEYS), inner, max_size=4)),
    max_leaves=12,
)


_KINDS: list[Kind] = ["rl", "sft", "eval", "filter"]
_RECORDED = Path(__file__).parents[1] / "gateway" / "recorded_creates.jsonl"
#: What the published clients sent as `data.config`.
_PAYLOADS: list[dict[str, Any]] = [
    request["body"]["data"]["config"]
    for request in map(json.loads, _RECORDED.read_text().splitlines())
    if "config" in request["body"].get("data", {})
]


def _check_places(error: UserError, name: str = "any.toml") -> None:
    assert error.problems
    for problem in error.problems:
        assert problem.where.startswith((name, "--"))
        assert problem.what


@given(st.text())
@example("a" * 10 + "=")
@example("[[a]]\n[[a]]\n[a.b]\nc = '''x\n]'''\nd = \"\"\"q\\\"\"\"\"\"\ne=[\n'#', # ]\n]\nf={g=1}\n")
@settings(max_examples=200, deadline=None)
def test_any_text_gives_a_job_or_a_user_error(text: str) -> None:
    try:
        resolve_job(read_toml(text, name="any.toml"), overrides=Overrides(), registry=_REGISTRY)
    except UserError as error:
        _check_places(error)


@given(st.binary(max_size=60))
@settings(max_examples=100, deadline=None)
def test_any_bytes_give_a_job_or_a_user_error(body: bytes) -> None:
    try:
        resolve_job(read_toml(body, name="any.toml"), overrides=Overrides(), registry=_REGISTRY)
    except UserError as error:
        _check_places(error)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("\n" + "a." * 20_000 + "b = 1", "any.toml:2: a key of more than 32 parts"),
        ("[" + "a." * 100_000 + "b]", "any.toml:1: a key of more than 32 parts"),
        ("x = {" + "a." * 20_000 + "b = 1}", "nested too deeply"),
        ("x = " + "[" * 50_000, "nested too deeply"),
        ("x = '" + "a" * 200_000, "is not closed"),
        ("[rollout]\n[training]\n" + "".join(f"iterations_per_epoch{i} = 1\n" for i in range(8_000)), "unknown key"),
        ("[rollout.policy_config]\n" + "".join(f"max_token{i} = 1\n" for i in range(8_000)), "neither base nor source"),
    ],
)
def test_a_file_that_is_made_to_cost_much_costs_little(text: str, words: str) -> None:
    started = time.process_time()
    with pytest.raises(UserError, match=words):
        resolve_job(read_toml(text, name="any.toml"), overrides=Overrides(), registry=_REGISTRY)
    assert time.process_time() - started < 3


@given(st.dictionaries(st.sampled_from(_KEYS), _VALUES, max_size=6), st.sampled_from([*_KINDS, None]))
@settings(max_examples=200, deadline=None)
def test_any_data_gives_a_job_that_is_json_or_a_user_error(data: dict[str, Any], kind: Any) -> None:
    try:
        document = read_data(data, name="any.toml")
        job = resolve_job(document, overrides=Overrides(), registry=_REGISTRY, kind=kind).job
    except UserError as error:
        _check_places(error)
    else:
        json.dumps(job_to_data(job), allow_nan=False)


@given(st.sampled_from(_KINDS), st.data())
@settings(max_examples=200, deadline=None)
def test_any_change_of_a_good_job_gives_a_job_or_a_user_error(name: Kind, data: st.DataObject) -> None:
    document: dict[str, Any] = copy.deepcopy(_GOOD[name])
    table = document[data.draw(st.sampled_from(sorted(document)))]
    for _ in range(data.draw(st.integers(1, 3))):
        model = data.draw(
            st.sampled_from(
                [
                    TrainingSection,
                    RolloutSection,
                    HyperparametersSection,
                    EvalSection,
                    ModelSection,
                    EvaluationSection,
                    FilterSection,
                ]
            )
        )
        key = data.draw(st.sampled_from([*table, *model.model_fields]))
        table[key] = data.draw(_VALUES)
    try:
        changed = read_data(document, name="any.toml")
        job = resolve_job(changed, overrides=_FLAGS, registry=_REGISTRY, kind=name).job
    except UserError as error:
        _check_places(error)
    else:
        json.dumps(job_to_data(job), allow_nan=False)


@given(st.sampled_from(_PAYLOADS), st.sampled_from(_KINDS), st.dictionaries(st.text(max_size=12), _VALUES), st.data())
@settings(max_examples=150, deadline=None)
def test_any_change_of_a_payload_gives_a_job_or_a_user_error(
    payload: dict[str, Any], kind: Kind, more: dict[str, Any], data: st.DataObject
) -> None:
    changed: dict[str, Any] = copy.deepcopy(payload) | more
    table = changed[data.draw(st.sampled_from(sorted(payload)))]
    if isinstance(table, dict):
        table[data.draw(st.sampled_from([*table, *_KEYS]))] = data.draw(_VALUES)
    try:
        document = read_data(changed, name="rl.json")
        report = validate_job(document, overrides=_FLAGS, registry=_REGISTRY, kind=kind)
    except UserError as error:
        _check_places(error, "rl.json")
        return
    if report.problems:
        _check_places(UserError(report.problems), "rl.json")
    json.dumps(report.values, allow_nan=False)
    assert all(w.startswith(("rl.json", "--")) for w in report.warnings)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(sorted(RlConfig.model_fields)),
            st.dictionaries(st.sampled_from(_KEYS), _LEAVES.filter(lambda v: v is not None), max_size=5),
        ),
        max_size=5,
        unique_by=lambda t: t[0],
    )
)
@settings(max_examples=200, deadline=None)
def test_the_line_of_every_key_is_the_line_it_stands_on(tables: list[tuple[str, dict[str, Any]]]) -> None:
    text = ""
    for name, table in tables:
        text += f"\n# [not.a.header]\n[{name}]\n"
        for key, value in table.items():
            text += f"{json.dumps(key, ensure_ascii=False)} = {_toml(value)} # x = 1\n"
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    lines = scan_lines(text)
    rows = text.split("\n")
    for name, table in data.items():
        assert rows[lines[(name,)] - 1] == f"[{name}]"
        for key in table:
            assert rows[lines[name, key] - 1].startswith(json.dumps(key, ensure_ascii=False))


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value)
    return repr(value)


def test_lines_are_right_around_everything_that_spans_lines() -> None:
    text = (
        'a = """\n[x]\nb = 1 \\\n"""\n'  # 1-4
        "c = [\n  1, # ]\n  '[y]',\n]\n"  # 5-8
        "[t.'q.r']\n"  # 9
        "d.e = 1\n"  # 10
        "[[list]]\nf = {g = '}', h = [1]}\n"  # 11-12
        "[[list]]\n[list.sub]\nf = 2\n"  # 13-15
    )
    lines = read_toml(text, name="x").lines
    assert lines["a",] == 1
    assert lines["c",] == 5
    assert lines["t", "q.r"] == 9
    assert lines["t", "q.r", "d", "e"] == 10
    assert lines["list", 0, "f"] == 12
    assert lines["list", 1] == 13
    assert lines["list", 1, "sub", "f"] == 15
