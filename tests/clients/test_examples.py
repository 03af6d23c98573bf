"""Every TOML in the wheels of the published client is accepted, or refused with the one right reason."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from contracts.client_examples import GIVEN, PAGE, Verdict, page, verdicts
from synth.client.connections.config import ConfigValue


@pytest.fixture(scope="session")
def site_packages(client_venvs: dict[str, Path]) -> dict[str, Path]:
    return {version: next(venv.glob("lib/python*/site-packages")) for version, venv in client_venvs.items()}


@pytest.fixture(scope="session")
def found(site_packages: dict[str, Path]) -> list[tuple[str, Verdict]]:
    return [row for folder in site_packages.values() for row in verdicts(folder).items()]


def test_the_page_says_what_becomes_of_them(site_packages: dict[str, Path]):
    assert page(site_packages) == PAGE.read_text()


@pytest.mark.parametrize("beside", ["nothing", "a cluster's data and settings"])
def test_the_command_says_the_same_wherever_it_is_run(
    beside: str, site_packages: dict[str, Path], tmp_path: Path
) -> None:
    if beside != "nothing":
        model = tmp_path / ".synth" / "models" / "tiny-qwen3"
        model.mkdir(parents=True)
        (model / "config.json").write_text('{"model_type": "qwen3"}')
        (tmp_path / ".env").write_text("SYNTH_API_KEY=sk_1\n")
    rows_file = tmp_path / "rows.jsonl"
    rows_file.write_text('{"messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]}\n')
    for folder in site_packages.values():
        asked: dict[tuple[str, ...], list[tuple[str, Verdict]]] = {}
        for file, found in verdicts(folder).items():
            asked.setdefault(found.flags if "--model" not in found.flags else (), []).append((file, found))
        for flags, rows in asked.items():
            given = [word for flag in flags for word in (flag, *_value_of(flag, rows_file))]
            command = [sys.executable, "-m", "synth.cli", "config", "check", "-o", "json"]
            command += [str(folder / file) for file, _ in rows]
            done = subprocess.run([*command, *given], cwd=tmp_path, capture_output=True, text=True, check=False)
            for (file, found), report in zip(rows, json.loads(done.stdout), strict=True):
                refused = found.word in ("refused", "no job") or "--model" in found.flags
                refused = refused or (found.word == "the cluster decides" and beside != "nothing")
                assert bool(report["problems"]) == refused, (file, found, report)
                if found.word == "the cluster decides" and beside == "nothing":
                    said = ("the cluster decides", "was not checked by the cluster")
                    assert any(words in warning for words in said for warning in report["warnings"]), (file, report)


def _value_of(flag: str, rows: Path) -> tuple[str, ...]:
    """What goes behind a flag on a command line. rows: a good dataset, for the command reads it."""
    given = [rows if isinstance(value, Path) else value for value in GIVEN[flag].values()]
    return tuple(v.text if isinstance(v, ConfigValue) else str(v) for v in given if v is not True)


def test_a_file_that_is_refused_has_one_reason(found: list[tuple[str, Verdict]]):
    refused = [(file, v.problems) for file, v in found if v.word in ("refused", "no job")]
    assert refused
    assert [row for row in refused if len(row[1]) != 1] == []


def test_no_key_of_an_example_is_unknown(found: list[tuple[str, Verdict]]):
    assert [
        (file, v.problems) for file, v in found if any("unknown key" in p or "unknown section" in p for p in v.problems)
    ] == []


def test_no_job_of_an_example_is_without_a_verdict_of_its_kind(found: list[tuple[str, Verdict]]):
    kinds = {v.kind for _, v in found if v.word in ("accepted", "checked", "the cluster decides")}
    assert kinds == {"rl", "sft", "eval", "filter"}
    assert not any("cannot tell what kind" in p for _, v in found for p in v.problems)
