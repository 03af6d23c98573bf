"""The task apps of a folder: found by reading, and served by their ids."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from synth.console.errors import UsageProblem
from synth.local.task_apps.discovery import Maker, find_apps
from synth.local.task_apps.loading import load_task_app
from tests.unit.cli.test_command_line import synthctl
from tests.unit.cli.test_serve import ONE

CLIENT = """
from synth_ai.task.apps import ModalDeploymentConfig, TaskAppEntry, register_task_app
raise SystemExit("whoever imports this runs it")
register_task_app(entry=TaskAppEntry(app_id="grpo-crafter", description="d", aliases=("crafter", "c")))
"""
MODAL = """
import modal
NAME = "on-modal"
app = modal.App(NAME)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "modules", {**sys.modules})
    (tmp_path / "games" / "chess").mkdir(parents=True)
    return tmp_path


def test_apps_of_three_makers_are_found_and_nothing_is_run(folder: Path):
    (folder / "games" / "one.py").write_text(ONE.format(name="one"))
    (folder / "games" / "client.py").write_text(CLIENT)
    (folder / "on_modal.py").write_text(MODAL)
    (folder / "attribute.py").write_text("import synth.taskapp.sdk as s\nif True:\n    two = s.TaskApp(id='two')\n")
    (folder / "other.py").write_text("class TaskApp: ...\nnot_one = TaskApp()\n")
    (folder / "inside.py").write_text("from synth.taskapp.sdk import TaskApp\ndef make(): return TaskApp('inside')\n")
    for hidden in (".git", "venv", "node_modules"):
        (folder / hidden).mkdir()
        (folder / hidden / "app.py").write_text(ONE.format(name="hidden"))
    (folder / "venv" / "pyvenv.cfg").touch()
    found = find_apps(Path())
    assert [(app.id, app.kind, app.place, app.variable) for app in found.apps] == [
        ("grpo-crafter", Maker.CLIENT, "games/client.py:4", ""),
        ("on-modal", Maker.MODAL, "on_modal.py:4", "app"),
        ("one", Maker.SDK, "games/one.py:4", "one"),
        ("two", Maker.SDK, "attribute.py:3", "two"),
    ]
    assert found.apps[0].aliases == ("crafter", "c")


def test_an_app_is_loaded_by_its_id_also_from_a_package_and_beside_a_module_of_that_name(folder: Path):
    for package in ("games", "games/chess"):
        (folder / package / "__init__.py").touch()
    (folder / "games" / "rules.py").write_text("NAME = 'from the package'")
    (folder / "games" / "chess" / "app.py").write_text(
        "from games.rules import NAME\nfrom ..rules import NAME as SAME\n" + ONE.format(name="math")
    )
    assert load_task_app("math").id == "math"
    # What is written with a dot, a colon or `.py` is a module or a file, as ever.
    assert load_task_app("games.chess.app").id == "math"
    assert load_task_app("games/chess/app.py:math").id == "math"


@pytest.mark.parametrize(
    ("id", "words"),
    [
        ("one", "2 task apps have the id 'one': a.py:4, b.py:4; name the file of one instead"),
        ("thre", "there is no task app 'thre' here; not looked into: bad.py:2: cannot be parsed"),
        ("thre", "is it three?"),
        ("grpo-crafter", "is an app of the synth-ai SDK; expected a task app"),
        ("on-modal", "serve it with `modal serve on_modal.py`"),
        ("none/at/all", "expected an id of those here: grpo-crafter, on-modal, one, three"),
    ],
)
def test_an_id_that_cannot_be_served_is_one_clear_line(id: str, words: str, folder: Path):
    (folder / "a.py").write_text(ONE.format(name="one"))
    (folder / "b.py").write_text(ONE.format(name="one"))
    (folder / "c.py").write_text(ONE.format(name="three"))
    (folder / "bad.py").write_text("from synth.taskapp.sdk import TaskApp\nx = = 1\n")
    (folder / "client.py").write_text(CLIENT)
    (folder / "on_modal.py").write_text(MODAL)
    with pytest.raises(UsageProblem) as caught:
        load_task_app(id)
    assert words in str(caught.value)


def test_apps_ls_lists_them_and_says_what_is_wrong(folder: Path):
    empty = synthctl("apps", "ls", "games", cwd=folder)
    assert (empty.returncode, empty.stdout) == (0, "")
    assert "no task app is in" in empty.stderr
    (folder / "a.py").write_text(ONE.format(name="one"))
    (folder / "b.py").write_text(ONE.format(name="one"))
    (folder / "bad.py").write_text("from synth.taskapp.sdk import TaskApp\nx = = 1\n")
    (folder / "computed.py").write_text("from synth.taskapp.sdk import TaskApp\nfour = TaskApp('fo' + 'ur')\n")
    listed = synthctl("apps", "ls", "-o", "json", cwd=folder)
    assert listed.returncode == 1
    found = json.loads(listed.stdout)
    assert [(app["id"], app["file"]) for app in found["apps"]] == [
        (None, "computed.py"),
        ("one", "a.py"),
        ("one", "b.py"),
    ]
    assert listed.stderr.splitlines() == [
        "warning: bad.py:2: cannot be parsed (invalid syntax)",
        "warning: 2 task apps have the id 'one': a.py:4, b.py:4; name the file of one to serve it",
        "warning: computed.py:2: the app's id is computed: name its file to serve it",
    ]
