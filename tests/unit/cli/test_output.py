"""What is printed off a terminal: names and whole values, and silence when nobody reads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from synth.cli.tui import output
from tests.unit.cli.backend import Answer, Request, backend_that, job_body
from tests.unit.cli.test_command_line import CLEAN, synthctl


def test_a_piped_table_has_a_line_of_names_and_whole_values(capsys: pytest.CaptureFixture[str]):
    moment = datetime(2026, 1, 2, tzinfo=UTC)
    row = ["a\tname\n", output.size(1_234_567), output.age(moment), output.number(12345.678), output.duration(61.5)]
    output.print_table(("name", "size", "age", "loss", "took"), [row], wrap="name")
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "name\tbytes\tcreated_at\tloss\tseconds",
        "a name\t1234567\t2026-01-02T00:00:00+00:00\t12345.678\t61.5",
    ]


def listed(request: Request) -> Answer:
    limit = int(parse_qs(urlsplit(request.path).query)["limit"][0])
    jobs = [job_body(id=f"job_{i:016}", model="m" * 300) for i in range(limit)]
    return Answer(200, {"data": jobs, "has_more": False})


def test_a_piped_list_is_neither_cut_nor_coloured(tmp_path: Path):
    with backend_that(listed) as (backend, _):
        env = {"BACKEND_BASE_URL": backend.url, "SYNTH_API_KEY": "k", "FORCE_COLOR": "1", "COLUMNS": "44"}
        run = synthctl("jobs", "ls", "--limit", "3", cwd=tmp_path, **env)
    lines = run.stdout.splitlines()
    assert lines[0].split("\t")[:2] == ["id", "name"]
    assert len(lines) == 4
    assert all(line.endswith("m" * 300) for line in lines[1:])
    assert "\x1b" not in run.stdout


@pytest.mark.parametrize(
    "arguments", [("jobs", "ls", "--limit", "200"), ("jobs", "ls", "--limit", "200", "-o", "json")]
)
def test_a_reader_that_goes_away_ends_it_without_a_word(arguments: tuple[str, ...], tmp_path: Path):
    with backend_that(listed) as (backend, _):
        read, write = os.pipe()
        os.close(read)
        run = subprocess.run(
            [sys.executable, "-m", "synth.cli", *arguments],
            cwd=tmp_path,
            env=CLEAN | {"BACKEND_BASE_URL": backend.url, "SYNTH_API_KEY": "k"},
            stdin=subprocess.DEVNULL,
            stdout=write,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
        os.close(write)
    assert (run.returncode, run.stderr) == (141, "")


def test_the_version_is_printed(tmp_path: Path):
    run = synthctl("--version", cwd=tmp_path)
    assert run.returncode == 0
    assert run.stdout.startswith("synthctl 0.")


def complete(line: str, cwd: Path, **env: str) -> list[str]:
    words = line.split(" ")
    shell = {"_SYNTHCTL_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": line}
    done = synthctl(cwd=cwd, **shell, **env)
    assert done.returncode == 0, (words, done.stderr)
    return done.stdout.splitlines()


def test_a_shell_completes_the_ids_of_jobs(tmp_path: Path):
    with backend_that(listed) as (backend, _):
        env = {"BACKEND_BASE_URL": backend.url, "SYNTH_API_KEY": "k"}
        offered = "\n".join(complete("synthctl jobs watch job_", tmp_path, **env))
        assert "job_0000000000000007" in offered
        assert any(r.path.startswith("/api/jobs?prefix=job_") for r in backend.requests)


def test_without_a_backend_a_shell_completes_nothing_and_says_nothing(tmp_path: Path):
    env = {"BACKEND_BASE_URL": "http://127.0.0.1:1", "SYNTH_API_KEY": "k"}
    assert complete("synthctl chat mod", tmp_path, **env) == ["_files"]  # of zsh: as it completes without us


def test_json_is_printed_whole_where_a_table_would_be_short(tmp_path: Path):
    with backend_that(listed) as (backend, _):
        env = {"BACKEND_BASE_URL": backend.url, "SYNTH_API_KEY": "k"}
        run = synthctl("jobs", "ls", "-o", "json", cwd=tmp_path, **env)
    assert json.loads(run.stdout)[0]["model"] == "m" * 300


def listed_models(request: Request) -> Answer:
    ids = ["rl:tiny-qwen3:job_0000000000000007", "rl:tiny-qwen3:job_0000000000000007:step_2", "tiny-qwen3"]
    return Answer(body={"data": [{"id": id, "kind": "base"} for id in ids]})


def complete_in_bash(words: list[str], cwd: Path, **env: str) -> list[str]:
    """What bash is offered for the last of these words, which it has taken apart as it does."""
    program = cwd / "synthctl"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m synth.cli "$@"\n')
    program.chmod(0o755)
    env = {"PATH": f"{cwd}:{CLEAN['PATH']}", "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"} | env
    script = subprocess.run(
        [program, "--show-completion", "bash"], env=CLEAN | env, capture_output=True, text=True, check=True, cwd=cwd
    ).stdout
    line = f"COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; _synthctl_completion synthctl"
    done = subprocess.run(
        ["bash", "--norc", "-c", f'{script}\n{line}\nprintf "%s\\n" "${{COMPREPLY[@]}}"'],
        env=CLEAN | env,
        capture_output=True,
        text=True,
        check=True,
        cwd=cwd,
    )
    return done.stdout.splitlines()


def test_bash_completes_ids_that_hold_colons(tmp_path: Path):
    with backend_that(listed_models) as (backend, _):
        env = {"BACKEND_BASE_URL": backend.url, "SYNTH_API_KEY": "k"}
        # bash puts what is offered in the place of what stands behind the last colon.
        assert complete_in_bash(["synthctl", "models", "rm", "rl", ":", "ti"], tmp_path, **env) == [
            "tiny-qwen3:job_0000000000000007",
            "tiny-qwen3:job_0000000000000007:step_2",
        ]
        assert complete_in_bash(["synthctl", "models", "rm", "rl", ":"], tmp_path, **env)[0].startswith("tiny-qwen3:")
        long = ["synthctl", "chat", "rl", ":", "tiny-qwen3", ":", "job_0000000000000007", ":", "s"]
        assert complete_in_bash(long, tmp_path, **env) == ["step_2"]
        # One that was not taken apart is offered whole.
        assert complete_in_bash(["synthctl", "chat", "tiny"], tmp_path, **env) == ["tiny-qwen3"]
