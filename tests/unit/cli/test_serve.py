"""`synthctl serve`: finding a task app in the user's code, and serving it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from synth.console.errors import UsageProblem
from synth.local.task_apps.loading import load_task_app
from synth.runtime.environment.env_file import read_env_file
from tests.unit.cli.test_command_line import CLEAN, synthctl

ONE = """
from synth.taskapp.sdk import Episode, TaskApp

{name} = TaskApp("{name}", name="n", description="d")


@{name}.episode
async def play(ep: Episode) -> float:
    return 0.5
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "modules", {**sys.modules})
    return tmp_path


def test_a_file_a_module_and_a_name_in_either_are_found(folder: Path):
    (folder / "app_one.py").write_text(ONE.format(name="one"))
    (folder / "app_two.py").write_text(ONE.format(name="one") + ONE.format(name="two"))
    assert load_task_app("app_one.py").id == "one"
    assert load_task_app("app_one").id == "one"
    assert load_task_app("app_two.py:two").id == "two"
    assert load_task_app("app_two:one").id == "one"
    assert load_task_app("synth.demo.math.app").id == "math"


@pytest.mark.parametrize(
    ("named", "words", "place"),
    [
        ("missing.py", "no such file", "missing.py"),
        ("no_such.module", "no module 'no_such'", "no_such.module"),
        ("bad.na me", "no module 'bad'", "bad.na me"),
        (".", "is not the name of a module", "."),
        ("none.py", "has no task app", "none.py"),
        ("two.py", "choose one: two.py:one", "two.py"),
        ("two.py:three", "two.py has no three", "two.py:three"),
        ("none.py:x", "x is a int", "none.py:x"),
        ("broken.py", "ZeroDivisionError: division by zero", "broken.py:3"),
        ("syntax.py", "SyntaxError", "syntax.py:1"),
        ("needs.py", "No module named 'absent_package'", "needs.py:1"),
    ],
)
def test_what_cannot_be_served_says_why_and_where(named: str, words: str, place: str, folder: Path):
    (folder / "none.py").write_text("x = 1\n")
    (folder / "two.py").write_text(ONE.format(name="one") + ONE.format(name="two"))
    (folder / "broken.py").write_text("\n\n1 / 0\n")
    (folder / "syntax.py").write_text("def :\n")
    (folder / "needs.py").write_text("import absent_package\n")
    with pytest.raises(UsageProblem) as caught:
        load_task_app(named)
    assert words in str(caught.value)
    assert caught.value.problems[0].where.endswith(place)


def test_it_serves_with_a_key_of_its_own_making_until_ctrl_c(tmp_path: Path):
    (tmp_path / "app.py").write_text(ONE.format(name="one"))
    clean = {k: v for k, v in CLEAN.items() if "ENVIRONMENT_API_KEY" not in k}
    server = subprocess.Popen(
        [sys.executable, "-m", "synth.cli", "serve", "app.py", "--port", "0"],
        cwd=tmp_path,
        env=clean,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        key = read_env_file(tmp_path / ".env")["ENVIRONMENT_API_KEY"]
        with httpx.Client(trust_env=False, timeout=20) as http:
            assert http.get(f"{url}/health", headers={"X-API-Key": key}).status_code == 200
            assert http.get(f"{url}/health", headers={"X-API-Key": "wrong"}).status_code == 400
    finally:
        os.kill(server.pid, signal.SIGINT)
        _, said = server.communicate(timeout=20)
    assert "Traceback" not in said
    assert key not in said


@pytest.mark.long
def test_with_reload_each_save_is_served_on_the_same_port_and_an_error_waits_for_the_next(tmp_path: Path):
    app, rules = tmp_path / "app.py", tmp_path / "rules.py"
    app.write_text(ONE.format(name="one"))
    server = subprocess.Popen(
        [sys.executable, "-m", "synth.cli", "serve", "app.py", "--port", "0", "--reload"],
        cwd=tmp_path,
        env=CLEAN | {"ENVIRONMENT_API_KEY": "k"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    assert server.stderr is not None

    def said(words: str) -> list[str]:
        lines: list[str] = []
        assert server.stderr is not None
        while not lines or words not in lines[-1]:
            line = server.stderr.readline()
            assert line, lines
            lines.append(line)
        return lines

    try:
        url = server.stdout.readline().strip()
        said("check it")
        with httpx.Client(trust_env=False, timeout=60, headers={"X-API-Key": "k"}) as http:
            rules.write_text("1 / 0\n")
            app.write_text("import rules\n" + ONE.format(name="two"))
            shown = said("waiting for the next save")
            assert "error: rules.py:1: importing it raised ZeroDivisionError: division by zero\n" in shown
            rules.write_text("")
            # Asked while nobody serves: it waits for who will.
            assert http.get(f"{url}/info").json()["service"]["task"]["id"] == "two"
            assert said("two is served at")[-1].strip().endswith(url)
            rules.write_text("from app_three import *\n")
            (tmp_path / "app_three.py").write_text("")
            app.write_text(ONE.format(name="three"))
            said("three is served at")
            assert http.get(f"{url}/info").json()["service"]["task"]["id"] == "three"
    finally:
        os.kill(server.pid, signal.SIGINT)
        _, rest = server.communicate(timeout=30)
    assert server.returncode == 130, rest
    assert "Traceback" not in rest


def test_an_app_without_an_episode_is_refused_at_its_start(tmp_path: Path):
    (tmp_path / "app.py").write_text(ONE.format(name="one").partition("@")[0])
    run = synthctl("serve", "app.py", "--port", "0", cwd=tmp_path)
    assert run.returncode == 2
    assert "has no episode" in run.stderr
