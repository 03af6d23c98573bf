"""Images of a rollout in the terminal: coloured blocks where there are no graphics, names where none is drawn."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Mapping
from pathlib import Path

import pytest
from PIL import Image

from synth.cli.tui.rollout.messages import message_lines

DIGEST = "ab" * 32
MESSAGE = {
    "role": "user",
    "content": [
        {"type": "image", "image": f"blob://orgs/org_1/images/{DIGEST}"},
        {"type": "text", "text": "What colour is the square?"},
    ],
}
DRAW = """
import sys
from pathlib import Path
from synth.cli.tui.rollout.lines import print_lines
from synth.cli.tui.rollout.messages import message_lines
from synth.cli.tui.rollout.pictures import can_draw
body = Path(sys.argv[1]).read_bytes()
message = {"role": "user", "content": [{"type": "image", "image": "blob://orgs/o/images/" + "ab" * 32}]}
print_lines(message_lines(message), (lambda sha256: body) if can_draw() else None)
"""


def on_a_terminal(file: Path, environment: Mapping[str, str] = {}, *, columns: int = 60) -> str:
    """What `DRAW` prints on a terminal that answers no question about its graphics."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    env = {"PATH": os.environ["PATH"], "TERM": "xterm-256color", "COLORTERM": "truecolor", **environment}
    process = subprocess.Popen(
        [sys.executable, "-c", DRAW, str(file)], stdin=follower, stdout=follower, stderr=follower, env=env
    )
    os.close(follower)
    shown = b""
    while True:
        try:
            piece = os.read(leader, 65536)
        except OSError:  # the terminal is closed
            break
        if not piece:
            break
        shown += piece
    os.close(leader)
    assert process.wait(30) == 0, shown
    return shown.decode(errors="replace")


def test_an_image_is_named_where_it_stands():
    assert list(message_lines(MESSAGE)) == [
        ("user", f"[image {DIGEST[:12]}]\nWhat colour is the square?"),
        ("image", DIGEST),
    ]


@pytest.fixture
def red(tmp_path: Path) -> Path:
    out = io.BytesIO()
    Image.new("RGB", (32, 32), (200, 10, 10)).save(out, "PNG")
    (tmp_path / "red.png").write_bytes(out.getvalue())
    return tmp_path / "red.png"


def test_a_terminal_without_graphics_gets_coloured_blocks(red: Path):
    shown = on_a_terminal(red)
    assert f"[image {DIGEST[:12]}]" in shown
    assert shown.count("▀") > 100
    assert "200;10;10" in shown


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_without_colours_nothing_is_drawn(red: Path, environment: dict[str, str]):
    shown = on_a_terminal(red, environment)
    assert f"[image {DIGEST[:12]}]" in shown
    assert "▀" not in shown
    assert "\x1b" not in shown


def test_a_terminal_without_a_size_gets_no_drawing(red: Path):
    assert "▀" not in on_a_terminal(red, columns=0)


def test_an_image_that_cannot_be_decoded_is_a_sentence(red: Path):
    red.write_bytes(red.read_bytes()[:40])
    assert "cannot be drawn" in on_a_terminal(red)
