"""What others wrote (names, errors, replies, logs) reaches a terminal as text, through every command that prints it."""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cli.terminal import on_terminal, piped
from tests.unit.cli.backend import Answer, Request, backend_that, job_body

CLI = Path(__file__).parents[3] / "services/synth/cli"

#: A title of the window, a cleared screen, the same in C1, a line written over, and one that is read backwards.
EVIL = "evil\x1b]0;owned\x07\x1b[2J\x9b2J\x9d0;owned\x9c\rroot# \x08\x7f\u202egnp.exe\u2066\u200f\u2028end"
#: What a terminal obeys, or shows as something else.
OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
#: The styles and the cursor of our own live views.
_OURS = re.compile(r"\x1b\[(?:\?25[lh]|2K|1A|[0-9;]*m)|\r")
_WHEN = "2026-01-01T00:00:00Z"
_PROBLEM = {"what": EVIL, "expected": EVIL, "fix": EVIL, "where": EVIL}
_EVENTS = [
    {"type": "job.created", "data": {"name": EVIL, "config": EVIL}},
    {"type": "queue.waiting", "data": {"lacks": EVIL, "pool": EVIL, "kind": "train", "place": 1}},
    {"type": "train.warned", "data": {"rule": EVIL, "step": 1, "problem": _PROBLEM}},
    {"type": "job.failed", "data": {"code": EVIL, "message": EVIL, "problems": [{"what": EVIL, "where": EVIL}]}},
]
_FILE = {"id": "file_1", "filename": EVIL, "purpose": EVIL, "bytes": 1, "sha256": EVIL, "created_at": _WHEN}
_KEY = {"id": "key_1", "name": EVIL, "state": "live", "scopes": ["read"], "created_at": _WHEN, "created_by": EVIL}


def hostile(request: Request) -> Answer:
    """A gateway that hands on whatever others wrote."""
    path = request.path.partition("?")[0].removeprefix("/api")
    failed = job_body("failed", name=EVIL, label=EVIL, code=EVIL, problems=[_PROBLEM], warnings=[EVIL], kind="rl")
    failed |= {"model": EVIL, "source_model": EVIL, "config": EVIL, "tags": {EVIL: EVIL}, "reason": EVIL}
    events = [{"seq": n, "time": _WHEN, "job_id": "job_1", **e} for n, e in enumerate(_EVENTS, 1)]
    match path.strip("/").split("/"):
        case ["jobs", "refused"]:
            return Answer(422, {"error": {"message": EVIL, "problems": [_PROBLEM]}})
        case ["jobs"]:
            return Answer(200, {"data": [failed], "has_more": False})
        case ["jobs", _]:
            return Answer(200, failed)
        case ["jobs", _, "events"] if "event-stream" in request.headers.get("Accept", ""):
            frames = [f"id: {e['seq']}\nevent: x\ndata: {json.dumps(e)}\n\n" for e in events]
            return Answer(chunks=[*frames, "event: end\ndata: {}\n\n"])
        case ["jobs", _, "events"]:
            return Answer(200, {"events": events, "last_seq": len(events), "more": False})
        case ["files"]:
            return Answer(200, {"data": [_FILE], "has_more": False})
        case ["files", _]:
            problems = [{"line": 1, "path": EVIL, "reason": EVIL}]
            return Answer(200, _FILE | {"status": "failed", "problems": problems, "bad_lines": 1})
        case ["models"]:
            return Answer(200, {"data": [{"id": EVIL, "kind": EVIL, "base": EVIL, "stand_in": EVIL}]})
        case ["keys"]:
            return Answer(200, {"data": [_KEY]})
        case ["v1", "chat", "completions"] if json.loads(request.body).get("stream"):
            pieces = [{"choices": [{"delta": {"content": c}}]} for c in EVIL]
            return Answer(chunks=[f"data: {json.dumps(p)}\n\n" for p in pieces] + ["data: [DONE]\n\n"])
        case ["v1", "chat", "completions"]:
            return Answer(200, {"choices": [{"message": {"content": EVIL}}]})
        case _:
            return Answer(404, {"error": {"message": f"{EVIL} {path}"}})


@pytest.fixture(scope="module")
def gateway() -> Iterator[str]:
    with backend_that(hostile) as (backend, _):
        yield backend.url


@pytest.fixture
def home(tmp_path: Path) -> Path:
    logs = tmp_path / ".synth" / "logs"
    logs.mkdir(parents=True)
    line: dict[str, Any] = {"event": EVIL, "level": "error", "timestamp": _WHEN, EVIL: EVIL, "exception": EVIL}
    (logs / "gateway.log").write_text(json.dumps(line) + "\nKilled " + EVIL.replace("\u2028", "") + "\n")
    return tmp_path


COMMANDS = (
    "jobs ls",
    "jobs get job_1",
    "jobs get refused",
    "jobs watch job_1",
    "jobs watch job_1 -o json",
    "jobs events job_1",
    "jobs config job_1 --as-submitted",
    "--debug jobs get refused",
    "files ls",
    "files get file_1",
    "models ls",
    "keys ls",
    "keys ls -o json",
    "chat -m hi evil",
    "chat -m hi evil -o json",
    "logs",
    "logs -o json",
    "jobs ls --state \x1b[2J",
    "nonsense-\x1b[2J\x9b2J",
)


@pytest.mark.parametrize("command", COMMANDS)
def test_nothing_that_others_wrote_is_obeyed_by_the_terminal(command: str, gateway: str, home: Path):
    shown = on_terminal(100, [*_synthctl(gateway), *command.split(" ")], cwd=home, timeout=40).raw
    assert "evil" in shown or "2J" in shown, shown
    found = OBEYED.search(_OURS.sub("", shown))
    assert found is None, (hex(ord(found[0])), shown)
    assert "\rroot" not in shown
    assert "\x1b[2J" not in shown


@pytest.mark.parametrize(
    "command", ["jobs ls", "jobs get job_1", "jobs get refused", "jobs watch job_1 -o json", "keys ls -o json", "logs"]
)
def test_nor_is_it_in_what_another_program_reads(command: str, gateway: str, home: Path):
    done = piped([*_synthctl(gateway), *command.split(" ")], cwd=home, timeout=40)
    assert OBEYED.search(done.stdout + done.stderr) is None
    if "-o json" in command:
        assert EVIL in _strings(done.stdout), "it is the same data all the same"


def test_a_job_file_in_a_pipe_is_what_was_submitted(gateway: str, home: Path):
    done = piped([*_synthctl(gateway), "jobs", "config", "job_1", "--as-submitted"], cwd=home)
    assert "\x9b2J" in done.stdout


def test_only_the_edge_writes_to_the_terminal():
    """A print anywhere else would pass it by."""
    # The version, the word "aborted", and our help with its styles.
    ours = {"app.py": {"typer.echo"}, "tui/help.py": {"typer.echo"}}
    found: set[tuple[str, str]] = set()
    for file in CLI.rglob("*.py"):
        name = file.relative_to(CLI).as_posix()
        if name == "tui/output.py":
            continue
        calls = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)]
        found |= {(name, wrote) for call in calls if (wrote := _writes(call)) and wrote not in ours.get(name, set())}
    assert found == set()


def _synthctl(gateway: str) -> list[str]:
    return ["env", f"BACKEND_BASE_URL={gateway}", "SYNTH_API_KEY=k", sys.executable, "-m", "synth.cli"]


def _writes(call: ast.Call) -> str | None:
    said = ast.unparse(call.func)
    if said in ("print", "typer.echo", "typer.secho", "click.echo", "click.secho", "Console", "rich.print"):
        return said
    if re.fullmatch(r"sys\.(__)?std(out|err)(__)?(\.buffer)?\.(write|writelines)", said):
        # What it writes has gone through `printable` here and now.
        return None if call.args and "printable(" in ast.unparse(call.args[0]) else said
    return None


def _strings(text: str) -> list[str]:
    found: list[str] = []

    def look(value: Any) -> None:
        if isinstance(value, str):
            found.append(value)
        elif isinstance(value, dict):
            for k, v in value.items():
                look(k)
                look(v)
        elif isinstance(value, list):
            for v in value:
                look(v)

    try:
        look(json.loads(text))
    except ValueError:
        for line in text.splitlines():
            look(json.loads(line))
    return found
