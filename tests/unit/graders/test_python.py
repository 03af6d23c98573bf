"""Graders that are code, each grading in a process of its own."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from synth.errors import UserError
from synth.graders.grade import GraderFailed, grade, run_python
from synth.graders.python.pool import PythonFailed, PythonPool, open_pool
from synth.graders.python.settings import PythonPoolSettings
from synth.graders.schema import MAX_SOURCE_BYTES, parse_grader
from synth.graders.template import Sample
from tests.unit.graders.test_model_graders import EXACT


async def _pool(timeout_s: float = 60.0) -> PythonPool:
    settings = PythonPoolSettings(
        python_graders=True, python_grader_timeout_s=timeout_s, python_grader_memory_bytes=1 << 29
    )
    pool = await open_pool(settings)
    assert pool is not None
    return pool


async def _graded(source: str, timeout_s: float = 60.0, item: Any = MappingProxyType({"answer": 4})) -> float:
    return await (await _pool(timeout_s)).grade(source, {"output_text": "four"}, dict(item))


async def test_code_grades_a_sample_by_its_row():
    source = "def grade(sample, item):\n    print('noise')\n    return len(sample['output_text']) / item['answer']"
    assert await _graded(source) == 1.0


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("def grade(sample, item):\n    return item['x']", r"KeyError: 'x' \(line 2\)"),
        ("def grade(sample, item):\n    return float('nan')", "returned nan"),
        ("def grade(sample, item):\n    return '1'", "returned '1'"),
        ("def grade(sample, item):\n    return None", "TypeError"),
        ("def grade(sample, item):\n    raise SystemExit(3)", "SystemExit: 3"),
        ("def grade(sample, item):\n    return len(bytearray(1 << 31))", "out of memory"),
        ("import os\ndef grade(sample, item):\n    os._exit(0)", "without an answer"),
        ("import os\ndef grade(sample, item):\n    os.write(3, b'x' * (1 << 20))", "more than"),
        ("def grade(sample, item):\n    return 10**400", "OverflowError"),
    ],
)
async def test_what_is_no_score_is_told_with_the_reason(source: str, why: str):
    with pytest.raises(PythonFailed, match=why):
        await _graded(source)


async def test_code_that_does_not_end_is_ended_with_all_that_it_has_started():
    source = "import subprocess\ndef grade(sample, item):\n    subprocess.run(['sleep', '1000'])"
    with pytest.raises(PythonFailed, match=r"within 0.5 s \(SYNTH_PYTHON_GRADER_TIMEOUT_S\)"):
        await _graded(source, 0.5)


async def test_code_that_leaves_a_process_in_another_group_is_given_up_at_its_time():
    source = (
        "import os, time\n"
        "def grade(sample, item):\n"
        "    if os.fork() == 0:\n"
        "        os.setsid()\n"
        "    time.sleep(20)\n"
        "    os._exit(0)\n"
    )
    # Time for the source to begin; less than what it leaves lives for.
    async with asyncio.timeout(12):
        with pytest.raises(PythonFailed, match=r"within 2 s"):
            await _graded(source, 2)


async def test_code_is_given_nothing_of_the_services_environment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SYNTH_CLUSTER_SECRET", "x")
    assert (
        await _graded("import os\ndef grade(sample, item):\n    return any('SYNTH' in key for key in os.environ)") == 0
    )


async def test_code_reads_no_environment_of_the_processes_above_it(monkeypatch: pytest.MonkeyPatch):
    source = (
        "import os\n"
        "def grade(sample, item):\n"
        "    for pid in (os.getppid(), item['service']):\n"
        "        try:\n"
        "            open(f'/proc/{pid}/environ', 'rb').read()\n"
        "            return 1\n"
        "        except OSError:\n"
        "            pass\n"
        "    return 0\n"
    )
    assert await _graded(source, item={"service": os.getpid()}) == 0


async def test_code_reaches_no_bus():
    source = "import socket\ndef grade(sample, item):\n    socket.create_connection(('127.0.0.1', item['port']))"
    with socket.create_server(("127.0.0.1", 0)) as bus, pytest.raises(PythonFailed, match="PermissionError"):
        await _graded(source, item={"port": bus.getsockname()[1]})


async def test_code_reads_no_file_of_the_service(tmp_path: Path):
    (tmp_path / "key").write_text("secret")
    source = "def grade(sample, item):\n    return len(open(item['file']).read())"
    with pytest.raises(PythonFailed, match=r"PermissionError|FileNotFoundError"):
        await _graded(source, item={"file": str(tmp_path / "key")})


async def test_without_a_sandbox_a_service_that_runs_code_does_not_start(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("synth.sandbox.modes.find_bubblewrap", lambda: None)
    settings = PythonPoolSettings(python_graders=True, sandbox="bubblewrap")
    with pytest.raises(UserError, match=r"SYNTH_SANDBOX: no sandbox starts .*bwrap.*; expected .*; install bubblewrap"):
        await open_pool(settings)


async def test_its_score_is_a_part_of_a_formula_and_its_failure_names_it():
    python = {"type": "python", "name": "p", "source": "def grade(sample, item):\n    return item['weight'] * 2"}
    multi = {"type": "multi", "name": "m", "graders": {"p": python, "e": EXACT}, "calculate_output": "p + e"}
    grader, sample = parse_grader(multi), Sample("4", [])
    ran = await run_python(grader, {"weight": 3}, sample, await _pool())
    assert grade(grader, {"weight": 3}, sample, max_characters=100, ran=ran).score == 7.0
    with pytest.raises(GraderFailed, match="the python grader 'p': KeyError"):
        await run_python(grader, {}, sample, await _pool())


def test_more_code_than_a_job_file_can_have_is_refused_before_it_is_parsed():
    part = {"type": "python", "name": "a", "source": "(" * (MAX_SOURCE_BYTES // 2 + 1)}
    multi = {"type": "multi", "graders": {"a": part, "b": part}, "calculate_output": "a"}
    with pytest.raises(UserError, match=f"at most {MAX_SOURCE_BYTES:,}"):
        parse_grader(multi)
