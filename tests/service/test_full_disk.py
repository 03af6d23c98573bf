"""A blob store whose disk is full asks to be tried again, leaves nothing behind, and goes on once there is room."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.soak.shim import Control, compile_shim

WRITER = """
import asyncio, sys
from pathlib import Path
from synth.blobs import BlobStore
from synth.errors import Transient

blobs = BlobStore.open("file:" + sys.argv[1])
source = Path(sys.argv[2])
for put in (lambda: blobs.put_bytes("a/body", b"body"), lambda: blobs.put_file("a/file", source)):
    try:
        print(asyncio.run(put()).uri)
    except Transient as error:
        print("full" if error.delay else "no delay", error)
"""


@pytest.mark.timeout(60)
def test_a_full_disk_is_no_failure_of_what_is_written(tmp_path: Path):
    control, shim, disk = Control(tmp_path / "control"), compile_shim(tmp_path), tmp_path / "blobs"
    (tmp_path / "source").write_text("file")

    def write() -> list[str]:
        command = [sys.executable, "-c", WRITER, str(disk), str(tmp_path / "source")]
        env = os.environ | control.environment(shim, disk)
        return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout.splitlines()

    control.disk_full = True
    control.write()
    assert [line.split()[0] for line in write()] == ["full", "full"]
    assert [path for path in disk.rglob("*") if path.is_file()] == []
    control.disk_full = False
    control.write()
    assert write() == ["blob://a/body", "blob://a/file"]
