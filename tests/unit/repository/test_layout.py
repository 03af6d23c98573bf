"""The layout check finds each thing that it says it finds, and the repository keeps to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from contracts import layout

_BOUNDARIES = """\
[importlinter:contract:layers]
layers =
    synthd
    inference | trainer
[importlinter:contract:logic]
source_modules =
    synth.trainer.rules
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A small repository that keeps to every rule."""
    for file in ("services/synth/synthd.py", "services/synth/trainer/rules.py", "services/synth/inference/app.py"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text("")
    (tmp_path / "shared/synth").mkdir(parents=True)
    (tmp_path / ".importlinter").write_text(_BOUNDARIES)
    return tmp_path


def test_a_repository_that_keeps_to_the_rules_has_no_violations(repository: Path):
    assert layout.violations(repository) == []


def test_a_folder_with_too_many_files_is_found(repository: Path):
    for n in range(layout.MOST_FILES):
        (repository / f"services/synth/trainer/part_{n}.py").write_text("")
    (found,) = layout.violations(repository)
    assert found.startswith(f"services/synth/trainer holds {layout.MOST_FILES + 1} Python files")


def test_a_file_that_is_too_long_is_found(repository: Path):
    (repository / "shared/synth/blobs.py").write_text("x = 1\n" * (layout.MOST_LINES + 1))
    (found,) = layout.violations(repository)
    assert found.startswith(f"shared/synth/blobs.py has {layout.MOST_LINES + 1} lines")


def test_a_service_that_no_boundary_guards_is_found(repository: Path):
    (repository / "services/synth/judge").mkdir()
    (repository / "services/synth/judge/app.py").write_text("")
    (found,) = layout.violations(repository)
    assert found.startswith("services/synth/judge is in no layer")


def test_a_boundary_around_a_module_that_is_not_there_is_found(repository: Path):
    (repository / "services/synth/trainer/rules.py").rename(repository / "services/synth/trainer/watch.py")
    (found,) = layout.violations(repository)
    assert "synth.trainer.rules, which does not exist" in found


def test_too_many_single_modules_in_the_boundaries_are_found(repository: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(layout, "MOST_SINGLE_MODULES", 1)
    (found,) = layout.violations(repository)
    assert found.endswith("synth.synthd, synth.trainer.rules")


def test_a_class_name_with_two_definitions_is_found(repository: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(layout, "MOST_SHARED_CLASS_NAMES", 0)
    for file in ("services/synth/trainer/rules.py", "services/synth/inference/app.py"):
        (repository / file).write_text("class Checkpoint: ...\n")
    assert layout.violations(repository)[1:] == [
        "  Checkpoint: services/synth/inference/app.py:1, services/synth/trainer/rules.py:1"
    ]


@pytest.mark.parametrize(
    "line", ["import synth.trainer.rules", "from synth.trainer.rules import x", "from synth import trainer"]
)
def test_a_shared_module_that_imports_a_service_is_found(repository: Path, line: str):
    (repository / "shared/synth/blobs.py").write_text(f"{line}\n")
    (found,) = layout.violations(repository)
    assert found.startswith("shared/synth/blobs.py:1 imports a service")
