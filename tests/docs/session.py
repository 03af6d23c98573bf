"""A page's blocks, run in order as a person runs them: one after the other in a terminal, in a copy of the repository.

Two things differ from the page: the ports 8000 and 8001 become free ones, and the ids of jobs that the page shows
become the ids of the jobs that its commands made. A session can also change the number of steps of job files
(`shorten`).
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import sys
import termios
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from synth.bus.server.embedded import free_port
from tests.docs.blocks import CODE, ROOT, Block, blocks_of
from tests.e2e.cli.conftest import OURS

#: A user's wait for one block: it may install a client, or train twice.
BLOCK_S = 900.0
_JOB = re.compile(r"\bjob_[0-9a-f]{16}\b")
_STEPS = re.compile(r"^((?:total_steps|iterations_per_epoch) = )\d+", re.MULTILINE)
_COLUMNS, _LINES = 120, 40


class BlockFailed(AssertionError):
    """A block of a page does not do what the page says."""


@dataclass
class Terminal:
    """A process in a terminal of its own, and what it has printed so far."""

    process: subprocess.Popen[bytes]
    master: int
    said: bytearray = field(default_factory=bytearray)

    def __post_init__(self) -> None:
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                piece = os.read(self.master, 65536)
            except OSError:
                return
            if not piece:
                return
            self.said += piece

    @property
    def text(self) -> str:
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.said.decode(errors="replace")).replace("\r", "")

    def wait(self, timeout: float) -> int:
        """The exit code. Raises `BlockFailed` at the deadline, after which nothing of it is left."""
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.end()
            raise BlockFailed(f"not over after {timeout:.0f} s:\n{self.text[-4000:]}") from None
        self._reader.join(2)
        return code

    def end(self) -> None:
        """End it as Ctrl-C does, with all that it started."""
        for sign in (signal.SIGINT, signal.SIGKILL):
            if self.process.poll() is None:
                os.killpg(self.process.pid, sign)
                try:
                    self.process.wait(15)
                except subprocess.TimeoutExpired:
                    continue
        # A read that goes on would read of whoever is given this descriptor next.
        self._reader.join(2)
        if not self._reader.is_alive():
            os.close(self.master)


@dataclass
class Session:
    """A copy of the repository, with the cluster that the page's commands start in it."""

    folder: Path
    ports: dict[str, str] = field(default_factory=lambda: {"8000": str(free_port()), "8001": str(free_port())})
    background: list[Terminal] = field(default_factory=list[Terminal])
    made_before: int = 0
    _scripts: int = 0

    def __post_init__(self) -> None:
        self.folder.mkdir()
        listed = subprocess.run(
            ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True, check=True
        )
        for name in filter(None, listed.stdout.decode().split("\0")):
            source, target = ROOT / name, self.folder / name
            if source.is_file():
                target.parent.mkdir(parents=True, exist_ok=True)
                # With its time: `make` looks whether the environment is older than what it was made from.
                shutil.copy2(source, target)
        for environment in (".venv", ".venv-clients"):
            if (ROOT / environment).exists():
                (self.folder / environment).symlink_to(ROOT / environment)
        for config in (self.folder / "configs").glob("*/*.toml"):
            config.write_text(self._with_free_ports(config.read_text()))
        self._env = {k: v for k, v in os.environ.items() if k not in OURS} | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",
            "TERM": "xterm-256color",
        }

    def run_page(self, page: Path) -> None:
        """Run every block of the page. Raises `BlockFailed` with the place of the first that fails."""
        blocks = [*blocks_of(page)]
        ids = [*dict.fromkeys(id for block in blocks if block.runs for id in _JOB.findall(block.text))]
        self.made_before = len(self._jobs()) if (self.folder / ".env").exists() else 0
        for block in blocks:
            if block.is_file:
                (self.folder / block.value).write_text(self._with_free_ports(block.text))
            elif block.runs:
                self._run(block, ids)

    def shorten(self, folder: str, **steps: int) -> None:
        """Set the number of steps of job files of this copy.

        folder: of `configs`. steps: file name without its suffix → its number of steps.
        """
        for name, number in steps.items():
            file = self.folder / "configs" / folder / f"{name}.toml"
            text, count = _STEPS.subn(rf"\g<1>{number}", file.read_text())
            assert count == 1, file
            file.write_text(text)

    def ok(self, command: str) -> str:
        """What a command of ours prints, in the session's folder."""
        terminal = self._start(command)
        if terminal.wait(BLOCK_S) != 0:
            raise BlockFailed(f"{command}:\n{terminal.text[-4000:]}")
        return terminal.text

    def made(self) -> list[dict[str, Any]]:
        """The jobs that the last page's commands made, oldest first."""
        return self._jobs()[self.made_before :]

    def metric(self, job: str, name: str) -> list[float]:
        """A figure of a job, step by step."""
        found = self._json("jobs", "metrics", job, "--name", name)
        return [float(point["value"]) for point in found["points"]]

    def close(self) -> None:
        """End what runs in the background, then the cluster."""
        for terminal in self.background:
            terminal.end()
        self._start("synthctl down").wait(120)

    def _run(self, block: Block, ids: list[str]) -> None:
        text = self._with_free_ports(self._with_real_ids(block.text, ids, block))
        if block.language in CODE:
            (self.folder / ".block.py").write_text(text)
            text = "python .block.py"
        if block.mark == "second terminal":
            self.background.append(self._start(text))
            self._await_port(self.background[-1], block)
            return
        terminal = self._start(text)
        code = terminal.wait(BLOCK_S)
        if code != 0 or "Traceback" in terminal.text:
            raise BlockFailed(f"{block.place} ended with {code}:\n{text}\n{terminal.text[-6000:]}")

    def _start(self, script: str) -> Terminal:
        """A block in a shell that has what the blocks before it have exported."""
        state = self.folder / ".session-env"
        before = f". {state} 2>/dev/null || true\n"
        # A file each: a shell reads its script as it goes on.
        self._scripts += 1
        file = self.folder / f".block-{self._scripts}.sh"
        file.write_text(f"{before}set -eo pipefail\n{script}\nexport -p > {state}\n")
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", _LINES, _COLUMNS, 0, 0))
        process = subprocess.Popen(
            ["bash", str(file)],
            cwd=self.folder,
            env=self._env,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        return Terminal(process, master)

    def _await_port(self, terminal: Terminal, block: Block) -> None:
        """Wait until what was started in the background says its address."""
        tick = threading.Event()
        for _ in range(600):
            if "http://127.0.0.1:" in terminal.text:
                return
            if terminal.process.poll() is not None:
                break
            tick.wait(0.1)
        raise BlockFailed(f"{block.place} does not serve:\n{terminal.text[-4000:]}")

    def _with_free_ports(self, text: str) -> str:
        text = text.replace("synthctl up", f"synthctl up --port {self.ports['8000']}")
        for port, free in self.ports.items():
            text = re.sub(rf"(?<=127\.0\.0\.1:){port}\b|(?<=--port ){port}\b", free, text)
        return text

    def _with_real_ids(self, text: str, ids: list[str], block: Block) -> str:
        """The page's n-th job is the n-th that its commands have made."""
        if not _JOB.search(text):
            return text
        made = self.made()

        def real(found: re.Match[str]) -> str:
            at = ids.index(found[0])
            if at >= len(made):
                raise BlockFailed(f"{block.place} shows {found[0]}, and only {len(made)} jobs were made before it")
            return str(made[at]["id"])

        return _JOB.sub(real, text)

    def _jobs(self) -> list[dict[str, Any]]:
        """The cluster's jobs, oldest first; none where no cluster answers."""
        return list(reversed(self._json("jobs", "ls", "--limit", "200") or []))

    def _json(self, *arguments: str) -> Any:
        run = subprocess.run(
            ["synthctl", *arguments, "-o", "json"],
            cwd=self.folder,
            env=self._env,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        return json.loads(run.stdout) if run.returncode == 0 else None
