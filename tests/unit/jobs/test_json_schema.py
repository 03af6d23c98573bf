"""The JSON schema of job files accepts the files of this repository, and refuses the mistakes of a user."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest

ROOT = Path(__file__).parents[3]
CONFIGS = sorted(ROOT.glob("configs/*/*.toml"))
STARTERS = sorted(ROOT.glob("services/synth/cli/starters/*.toml"))
SCHEMA = ROOT / "docs/config.schema.json"


@pytest.fixture(scope="module")
def schema() -> jsonschema.Draft7Validator:
    return jsonschema.Draft7Validator(json.loads(SCHEMA.read_text()))


def read(file: Path) -> dict[str, Any]:
    return tomllib.loads(file.read_text())


@pytest.mark.parametrize("file", [*CONFIGS, *STARTERS], ids=lambda file: "/".join(file.parts[-2:]))
def test_a_job_file_of_this_repository_passes(file: Path, schema: jsonschema.Draft7Validator):
    schema.validate(read(file))


@pytest.mark.parametrize("file", CONFIGS, ids=lambda file: "/".join(file.parts[-2:]))
def test_the_first_line_of_a_config_names_the_schema(file: Path):
    directive, _, place = file.read_text().splitlines()[0].partition(" ")
    assert (directive, (file.parent / place).resolve()) == ("#:schema", SCHEMA)


@pytest.mark.parametrize(
    ("table", "key", "value"),
    [
        ("training", "group_sise", 8),
        ("training", "group_size", "8"),
        ("training", "group_size", 1),
        ("training", "clip_norm", 1.0),
        ("rollout", "max_retries", -1),
        ("data", "seeds", "9"),
        ("tranining", "group_size", 8),
    ],
)
def test_an_unknown_key_and_a_wrong_value_fail(table: str, key: str, value: object, schema: jsonschema.Draft7Validator):
    job = read(ROOT / "configs/demo/rl.toml")
    job.setdefault(table, {})[key] = value
    assert not schema.is_valid(job)


def test_a_key_has_its_text_and_its_default():
    tables = json.loads(SCHEMA.read_text())["$defs"]
    retries = tables["RolloutSection"]["properties"]["max_retries"]
    assert (retries["default"], retries["minimum"], retries["description"][:9]) == (3, 0, "how often")
    assert "grad_clip" in tables["TrainingSection"]["properties"]
