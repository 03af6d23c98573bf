"""What others wrote stands in a service's log as text: one object a line, in ASCII."""

from __future__ import annotations

import json
import re
import subprocess
import sys

EVIL = "evil\x1b]0;owned\x07\x9b2J\rroot# \u202egnp.exe\u2028end"
SERVICE = """
import asyncio, logging, sys, threading, warnings
from synth.runtime import logs

evil = sys.argv[1]
logs.configure("verifier", replica="verifier-0")
log = logs.get("test")
log.warning(evil, **{evil: evil, "where": [evil, {"a": evil}]})
try:
    raise ValueError(evil)
except ValueError:
    log.exception("failed")
logging.getLogger("library").error("said %s", evil)
warnings.warn(evil)
class Broken:
    def __del__(self):
        raise ValueError(evil)
Broken()
thread = threading.Thread(target=lambda: int(evil))
thread.start()
thread.join()
async def main():
    raise RuntimeError(evil)
asyncio.run(main())
"""


def test_whatever_a_service_is_told_its_log_is_lines_of_ascii():
    done = subprocess.run([sys.executable, "-c", SERVICE, EVIL], capture_output=True, check=False, timeout=60)
    assert done.returncode == 1
    assert done.stdout == b""
    assert re.fullmatch(rb"[\n -~]*", done.stderr)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert lines[0]["event"] == lines[0][EVIL] == EVIL
    assert lines[0]["service"] == "verifier"
    said = [line for line in lines if EVIL in str(line.get("event")) + line.get("exception", "")]
    # The line, the handled error, the library's, the warning, and the three that nobody caught.
    assert len(said) >= 6
    assert [line["level"] for line in lines].count("critical") == 3
