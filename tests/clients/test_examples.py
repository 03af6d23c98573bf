"""Every TOML in the wheels of the published client is accepted, or refused with the one right reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from contracts.client_examples import PAGE, Verdict, page, verdicts


@pytest.fixture(scope="session")
def site_packages(client_venvs: dict[str, Path]) -> dict[str, Path]:
    return {version: next(venv.glob("lib/python*/site-packages")) for version, venv in client_venvs.items()}


@pytest.fixture(scope="session")
def found(site_packages: dict[str, Path]) -> list[tuple[str, Verdict]]:
    return [row for folder in site_packages.values() for row in verdicts(folder).items()]


def test_the_page_says_what_becomes_of_them(site_packages: dict[str, Path]):
    assert page(site_packages) == PAGE.read_text()


def test_a_file_that_is_refused_has_one_reason(found: list[tuple[str, Verdict]]):
    refused = [(file, v.problems) for file, v in found if v.word in ("refused", "no job")]
    assert refused
    assert [row for row in refused if len(row[1]) != 1] == []


def test_no_key_of_an_example_is_unknown(found: list[tuple[str, Verdict]]):
    assert [
        (file, v.problems) for file, v in found if any("unknown key" in p or "unknown section" in p for p in v.problems)
    ] == []


def test_no_job_of_an_example_is_without_a_verdict_of_its_kind(found: list[tuple[str, Verdict]]):
    kinds = {v.kind for _, v in found if v.word in ("accepted", "checked")}
    assert kinds == {"rl", "sft", "eval", "filter"}
    assert not any("cannot tell what kind" in p for _, v in found for p in v.problems)
