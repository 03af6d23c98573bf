"""A program's process ends with the program's code, whatever threads of a library do then."""

from __future__ import annotations

import subprocess
import sys

import pytest

_STORES = """
import asyncio, sys
import obstore
from obstore.store import LocalStore
from synth.runtime.process_end import run_and_end

async def store():
    there = LocalStore(sys.argv[1])
    first, *_ = [asyncio.ensure_future(obstore.put_async(there, f"k{i}", b"x" * 4096)) for i in range(500)]
    await first

run_and_end(lambda: asyncio.run(store()))
"""


def test_a_process_ends_well_while_its_blob_store_is_at_work(tmp_path):
    command = [sys.executable, "-c", _STORES, str(tmp_path)]
    # An interpreter that is taken down aborts about every second of these.
    for _ in range(10):
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize(
    ("end", "code", "said"),
    [
        ("", 0, ""),
        ("sys.exit(7)", 7, ""),
        ("sys.exit()", 0, ""),
        ("sys.exit('no such file')", 1, "no such file\n"),
    ],
)
def test_the_code_is_the_programs_and_what_was_registered_is_called(end, code, said):
    program = f"""
import atexit, sys
from synth.runtime.process_end import run_and_end

def main():
    atexit.register(lambda: print("called"))
    print("done", end=" ")
    {end}

run_and_end(main)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (code, "done called\n", said)


def test_an_error_keeps_its_traceback():
    program = "from synth.runtime.process_end import run_and_end\nrun_and_end(lambda: 1 / 0)"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert "ZeroDivisionError" in ended.stderr
