"""A harness that hangs ends by itself, and leaves no process behind."""

from __future__ import annotations

import subprocess
import sys

import psutil

from tests.soak.__main__ import Plan, run

# The loop is blocked, so that no timeout of asyncio would help.
HANGS = """
import subprocess, sys, time
from tests.soak.deadline import ends_within
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print(child.pid, flush=True)
with ends_within(0.2):
    time.sleep(600)
"""


def test_a_run_that_hangs_ends_with_its_processes_and_says_where():
    done = subprocess.run([sys.executable, "-c", HANGS], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    child, said = done.stdout.split("\n", 1)
    assert "given up" in said
    assert 'File "<string>", line 7' in done.stderr
    assert not psutil.pid_exists(int(child)) or psutil.Process(int(child)).status() == psutil.STATUS_ZOMBIE


async def test_a_run_that_is_not_over_in_time_has_failed_and_says_where_it_was(tmp_path):
    plan = Plan(seed=0, minutes=None, faults=0, without="", patience_s=0.2, until_violation=False)
    its = await run(tmp_path, plan)
    [violation] = its.found
    assert violation.promise == "a run ends in its time"
    assert "the cluster starts" in violation.what
    assert its.summary().endswith("0 of 0 jobs ended, 0 facts, 1 violations")
    started = [server.process for server in its.cluster.bus_servers.servers if server.process is not None]
    assert all(process.poll() is not None for process in started)
