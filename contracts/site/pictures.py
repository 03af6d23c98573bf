"""Records pictures of terminals from a real run: `make pictures` writes them below `docs/`.

The demo's jobs run on a cluster in a temporary folder, for about three minutes. A picture is one screen of a command in
a terminal, as SVG that loads no font from another host.
"""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyte
from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs/pictures"
_COLUMNS, _LINES = 100, 40
_FONTS = "ui-monospace, SF Mono, Menlo, Consolas, DejaVu Sans Mono, Liberation Mono, monospace"
#: A job file with a misspelt key, a wrong type and a forgotten table.
_MISTAKES = """\
[algorithm]
type = "online"
method = "policy_gradient"
variety = "gspo"

[model]
base = "tiny-qwen3"

[rollout]
env_name = "math"
episodes_per_batch = "many"

[training]
num_epochs = 1
iterations_per_epoch = 30
learning_rat = 1e-3
"""


@dataclass(frozen=True)
class Picture:
    """One screen. command: the command, which is also its title. at: the text that the screen shows; "": at the end."""

    name: str
    command: str
    at: str = ""


PICTURES_OF_A_RUN = (
    Picture("run", "synthctl jobs watch @last", at=r"iteration .* 2[2-9]/30"),
    Picture("learned", "synthctl jobs watch @last"),
    Picture("curves", "synthctl jobs metrics @last --plot --name reward_mean"),
    Picture("check", "synthctl config check mistakes.toml"),
)


class Terminal:
    """A command in a terminal of its own, and its screen."""

    def __init__(self, command: str, folder: Path) -> None:
        self.screen = pyte.Screen(_COLUMNS, _LINES)
        self._stream = pyte.ByteStream(self.screen)
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", _LINES, _COLUMNS, 0, 0))
        self.process = subprocess.Popen(
            ["bash", "-c", command], cwd=folder, stdin=slave, stdout=slave, stderr=slave, start_new_session=True
        )
        os.close(slave)

    def frames(self) -> Iterator[str]:
        """Yield the screen's text after each piece of output, to the end of the command."""
        while True:
            try:
                piece = os.read(self._master, 65536)
            except OSError:
                break
            if not piece:
                break
            self._stream.feed(piece)
            yield "\n".join(self.screen.display)
        self.process.wait()
        os.close(self._master)


def record(picture: Picture, folder: Path) -> None:
    """Run a picture's command to its end, and write one screen of it. Raises ValueError if no screen matches."""
    terminal = Terminal(picture.command, folder)
    drawn = ""
    for frame in terminal.frames():
        if picture.at and not drawn and re.search(picture.at, frame):
            drawn = _svg(picture, terminal.screen)
    if picture.at and not drawn:
        raise ValueError(f"no screen of {picture.command!r} matches {picture.at!r}")
    PICTURES.mkdir(exist_ok=True)
    (PICTURES / f"{picture.name}.svg").write_text(drawn or _svg(picture, terminal.screen))
    sys.stdout.write(f"docs/pictures/{picture.name}.svg\n")


def _svg(picture: Picture, screen: pyte.Screen) -> str:
    lines = [_line(screen, y) for y in range(screen.lines)]
    while lines and not lines[-1].plain.strip():
        lines.pop()
    lines.append(Text())  # the lower edge would cut the last line
    console = Console(record=True, width=_COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text("\n").join(lines), no_wrap=True, crop=True)
    svg = console.export_svg(title=f"$ {picture.command}", unique_id=picture.name)
    # Rich loads its font from another host.
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    return re.sub(r"font-family: [^;]+;", f"font-family: {_FONTS};", svg)


def _line(screen: pyte.Screen, y: int) -> Text:
    text = Text()
    for x in range(screen.columns):
        cell = screen.buffer[y][x]
        style = [word for word, on in (("bold", cell.bold), ("italic", cell.italics), ("reverse", cell.reverse)) if on]
        if cell.fg != "default":
            colour = f"#{cell.fg}" if re.fullmatch("[0-9a-f]{6}", cell.fg) else cell.fg.replace("bright", "bright_")
            style.append(colour.replace("brown", "yellow"))
        text.append(cell.data, " ".join(style))
    text.rstrip()
    return text


@contextmanager
def _cluster(folder: Path) -> Iterator[None]:
    for name in ("configs", "task_apps"):
        shutil.copytree(ROOT / name, folder / name)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        app_port = free.getsockname()[1]
    for file in (folder / "configs").rglob("*.toml"):
        file.write_text(file.read_text().replace("127.0.0.1:8001", f"127.0.0.1:{app_port}"))
    app: subprocess.Popen[bytes] | None = None
    try:
        _run(f"synthctl models make tiny-qwen3 && synthctl up --detach --port {port}", folder)
        _run("python -m synth.demo.math.dataset --out math.jsonl --rows 16000", folder)
        app = subprocess.Popen(
            ["synthctl", "serve", "synth.demo.math.app", "--port", str(app_port)], cwd=folder, stdout=subprocess.DEVNULL
        )
        yield
    finally:
        if app is not None:
            app.send_signal(signal.SIGINT)
            app.wait()
        _run("synthctl down", folder)


def _run(command: str, folder: Path) -> str:
    return subprocess.run(["bash", "-c", command], cwd=folder, check=True, capture_output=True, text=True).stdout


def main() -> int:
    """Train the demo's model in two jobs, and record the screens."""
    os.environ["PATH"] = f"{ROOT / '.venv/bin'}:{os.environ['PATH']}"
    os.environ |= {"OMP_NUM_THREADS": "1", "TERM": "xterm-256color"}
    with tempfile.TemporaryDirectory() as name, _cluster(Path(name)):
        folder = Path(name)
        (folder / "mistakes.toml").write_text(_MISTAKES)
        _run("synthctl submit configs/demo/sft.toml --dataset math.jsonl --follow", folder)
        model = json.loads(_run("synthctl jobs get @last -o json", folder))["model"]
        _run(f"synthctl submit configs/demo/rl.toml --model {model} --detach", folder)
        for picture in PICTURES_OF_A_RUN:
            record(picture, folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
