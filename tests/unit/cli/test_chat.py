"""`synthctl chat`: its commands, how it ends, and two models side by side."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from synth.cli.commands.chat import Speaker, converse
from synth.client import Client
from tests.e2e.cli.terminal import on_terminal
from tests.unit.cli.backend import Answer, Request, backend_that


def answer(request: Request) -> Answer:
    """A model that says its name, and what it was told."""
    if request.method == "GET":
        return Answer(body={"id": request.path.rpartition("/")[2], "kind": "base"})
    body = json.loads(request.body)
    told = " | ".join(f"{m['role']}: {m['content']}" for m in body["messages"])
    if not body.get("stream"):
        return Answer(body={"choices": [{"message": {"content": f"{body['model']} heard {told}"}}]})
    pieces = [f"{body['model']} heard ", told]
    chunks = [f"data: {json.dumps({'choices': [{'delta': {'content': piece}}]})}\n\n" for piece in pieces]
    return Answer(chunks=[*chunks, "data: [DONE]\n\n"])


def talk(monkeypatch: pytest.MonkeyPatch, *lines: str | type[BaseException]) -> list[list[dict[str, Any]]]:
    """Type these lines at a model; returns the messages of each request. An exception is raised in their stead."""
    typed: Iterator[str | type[BaseException]] = iter(lines)

    def type_line(prompt: str) -> str:
        line = next(typed)
        if isinstance(line, str):
            return line
        raise line

    monkeypatch.setattr("builtins.input", type_line)
    with backend_that(answer) as (backend, client):
        converse(client, [Speaker({"model": "tiny"}, [])], patience=1)
        return [json.loads(request.body)["messages"] for request in backend.requests]


def contents(messages: list[dict[str, Any]]) -> list[str]:
    return [f"{m['role']}: {m['content']}" for m in messages]


def test_a_system_message_is_set_shown_and_kept_while_the_rest_is_forgotten(monkeypatch, capsys):
    asked = talk(monkeypatch, "/system Be brief.", "one", "/system", "/clear", "two", "/system -", "three", EOFError)
    assert contents(asked[0]) == ["system: Be brief.", "user: one"]
    assert contents(asked[1]) == ["system: Be brief.", "user: two"]
    assert contents(asked[2])[0] == "user: two"
    assert "Be brief." in capsys.readouterr().err


def test_help_lists_the_commands_and_an_unknown_one_is_not_sent_to_the_model(monkeypatch, capsys):
    assert talk(monkeypatch, "/help", "/sytem x", "/tmp/a is a path", EOFError) == [
        [{"role": "user", "content": "/tmp/a is a path"}]
    ]
    printed = capsys.readouterr()
    assert all(word in printed.out for word in ("/system", "/clear", "/help", "/exit"))
    assert "/sytem" in printed.err


def test_ctrl_c_ends_a_reply_and_then_the_chat(monkeypatch):
    read = Client.chat_stream

    def interrupted(self: Client, **request: Any) -> Any:
        if request["messages"][-1]["content"] == "a long story":
            raise KeyboardInterrupt
        return read(self, **request)

    monkeypatch.setattr(Client, "chat_stream", interrupted)
    asked = talk(monkeypatch, "a long story", "short", KeyboardInterrupt, "never typed")
    assert [contents(messages) for messages in asked] == [["user: short"]], "what was stopped is not remembered"


@pytest.mark.parametrize("columns", [80, 60])
def test_two_models_stand_side_by_side_or_below_each_other(tmp_path: Path, columns: int):
    with backend_that(answer) as (backend, _):
        env = {"SYNTH_API_KEY": "synth_live_x", "BACKEND_BASE_URL": backend.url}
        command = [sys.executable, "-m", "synth.cli", "chat", "tuned", "--with", "tiny", "-m", "hello there"]
        shown = on_terminal(columns, command, cwd=tmp_path, env=env)
        assert shown.code == 0, shown.text
        both = [line for line in shown.lines if "tuned heard" in line and "tiny heard" in line]
        assert bool(both) == (columns == 80), shown.text
        assert "tiny heard" in shown.text


def test_two_models_that_are_one_are_refused(tmp_path: Path):
    command = [sys.executable, "-m", "synth.cli", "chat", "tiny", "--with", "tiny", "-m", "x"]
    shown = on_terminal(80, command, cwd=tmp_path, env={"SYNTH_API_KEY": "synth_live_x"})
    assert shown.code == 2
    assert "tiny is compared with itself" in shown.text


def test_off_a_terminal_two_replies_stand_below_their_models(tmp_path: Path):
    with backend_that(answer) as (backend, _):
        env = {**os.environ, "SYNTH_API_KEY": "synth_live_x", "BACKEND_BASE_URL": backend.url}
        command = [sys.executable, "-m", "synth.cli", "chat", "tuned", "--with", "tiny", "-m", "hello"]
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "[tuned]\ntuned heard user: hello\n[tiny]\ntiny heard user: hello\n"
