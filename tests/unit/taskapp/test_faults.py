"""What an author reads of an exception in his own code, whoever ran it."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest

from synth.taskapp.faults import fault_of
from synth.taskapp.sdk import Episode, TaskApp
from tests.unit.taskapp.echo_app import app_with, client, play
from tests.unit.taskapp.scripted_llm import ScriptedLlm

SOURCE = """\
import json

def look(seed):
    return {}[seed]

def parse(text):
    return json.loads(text)

def wrapped(seed):
    try:
        return look(seed)
    except KeyError as missing:
        raise ValueError("no such maze") from missing

def deep(n):
    return deep(n - 1) if n else 1 / 0
"""


@pytest.fixture
def maze(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module of the author's, in the working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "maze.py").write_text(SOURCE)
    module = ModuleType("maze")
    exec(compile(SOURCE, str(tmp_path / "maze.py"), "exec"), vars(module))
    return module


def raised_by(function: Any, *arguments: Any) -> BaseException:
    with pytest.raises((LookupError, ValueError, ArithmeticError)) as caught:
        function(*arguments)
    # What called it is this test's file, which is nobody's library either.
    error = caught.value
    while error.__traceback__ is not None and error.__traceback__.tb_frame.f_code.co_filename == __file__:
        error.__traceback__ = error.__traceback__.tb_next
    return error


def test_the_author_s_own_line_is_named_with_its_source(maze: Any):
    assert fault_of(raised_by(maze.look, 7)).lines() == ["maze.py:4, in look", "  return {}[seed]", "KeyError: 7"]


def test_what_a_library_raised_is_shown_at_the_line_that_called_it(maze: Any):
    lines = fault_of(raised_by(maze.parse, "{")).lines()
    assert lines[:2] == ["maze.py:7, in parse", "  return json.loads(text)"]
    assert lines[2].startswith("JSONDecodeError: ")
    assert lines[3].startswith("raised in json/decoder.py:")


def test_the_cause_is_named_with_its_place(maze: Any):
    fault = fault_of(raised_by(maze.wrapped, 7))
    assert fault.place == "maze.py:13"
    assert fault.what == "ValueError: no such maze\nfrom KeyError: 7 (maze.py:4)"


def test_of_a_deep_recursion_the_last_calls_are_shown(maze: Any):
    assert len(fault_of(raised_by(maze.deep, 50)).frames) == 8


async def test_a_rollout_that_the_app_breaks_answers_and_logs_the_author_s_line_alone(
    maze: Any, caplog: pytest.LogCaptureFixture
):
    app = app_with(ScriptedLlm())

    @app.episode
    def episode(ep: Episode) -> None:
        maze.look(ep.seed)

    with caplog.at_level(logging.ERROR):
        reply = await play(app)
    assert reply.json()["detail"]["error"]["message"] == "KeyError: 7 (maze.py:4)"
    assert reply.json()["traceback"][-3:] == ["maze.py:4, in look", "  return {}[seed]", "KeyError: 7"]
    [logged] = caplog.records
    assert logged.exc_info is None
    assert logged.getMessage().startswith("the episode of seed 7, run r1 failed\n")
    assert "synth/taskapp" not in logged.getMessage()


@pytest.mark.parametrize("wrong", ["raises", "no json"])
async def test_a_description_that_breaks_is_a_500_and_no_traceback_of_the_server(
    wrong: str, maze: Any, capfd: pytest.CaptureFixture[str]
):
    app: TaskApp = app_with(ScriptedLlm())
    app.task_info(lambda seed: maze.look(seed) if wrong == "raises" else {"maze": object()})
    async with client(app) as http:
        reply: httpx.Response = await http.get("/task_info?seed=7")
    assert reply.status_code == 500
    assert json.loads(reply.text)["detail"]["error"]["code"] == "environment_error"
    assert "Traceback" not in capfd.readouterr().err
    assert sys.exc_info() == (None, None, None)
