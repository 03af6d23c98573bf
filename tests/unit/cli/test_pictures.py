"""Images of a rollout in the terminal: coloured blocks where there are no graphics, names where none is drawn."""

from __future__ import annotations

import base64
import fcntl
import io
import os
import pty
import re
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


#: Of a terminal with the cells' size in pixels, what it says of itself when it is asked.
SIXEL = b"\x1b[?62;4c"
KITTY = b"\x1b[?62c\x1b_Gi=1;OK\x1b\\"


def on_a_terminal(
    file: Path, environment: Mapping[str, str] = {}, *, columns: int = 60, says: bytes = b"", stdin: int | None = None
) -> str:
    """What `DRAW` prints on a terminal.

    says: its answers to the questions about its graphics; they lie there before they are asked for, so that no
    deadline of the asker is missed. stdin: of the process, in place of the terminal.
    """
    leader, follower = pty.openpty()
    pixels = (10 * columns, 480) if says else (0, 0)
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, *pixels))
    os.write(leader, says)
    env = {"PATH": os.environ["PATH"], "TERM": "xterm-256color", "COLORTERM": "truecolor", **environment}
    process = subprocess.Popen(
        [sys.executable, "-c", DRAW, str(file)],
        stdin=follower if stdin is None else stdin,
        stdout=follower,
        stderr=follower,
        env=env,
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


def test_a_terminal_with_sixels_gets_them(red: Path):
    shown = on_a_terminal(red, says=SIXEL)
    assert f"[image {DIGEST[:12]}]" in shown
    assert "▀" not in shown
    [picture] = re.findall(r"\x1bP[0-9;]*q([^\x1b]*)\x1b\\", shown)
    # 32 columns of 10 pixels, and as high: the colour in percent, then its pixels.
    assert picture.startswith('"1;1;320;320')
    assert re.search(r"#0;2;7[89];[34];[34]", picture)


def test_a_terminal_with_kittys_graphics_gets_the_picture_and_where_it_stands(red: Path):
    shown = on_a_terminal(red, {"TERM": "xterm-kitty"}, says=KITTY)
    assert f"[image {DIGEST[:12]}]" in shown
    assert "▀" not in shown
    messages = re.findall(r"\x1b_G([^;\x1b]*);?([^\x1b]*)\x1b\\", shown)
    sent = [payload for keys, payload in messages if "f=100" in keys.split(",")]
    picture = Image.open(io.BytesIO(base64.b64decode("".join(sent))))
    assert (picture.size, picture.convert("RGB").getpixel((5, 5))) == ((320, 320), (200, 10, 10))
    [placed] = [dict(pair.split("=") for pair in keys.split(",")) for keys, _ in messages if "U=1" in keys]
    assert (placed["a"], placed["c"], placed["r"]) == ("p", "32", "16")
    assert shown.count("\U0010eeee") == 32 * 16


def test_a_terminal_that_cannot_be_asked_gets_no_drawing(red: Path):
    shown = on_a_terminal(red, stdin=subprocess.DEVNULL)
    assert f"[image {DIGEST[:12]}]" in shown
    assert "▀" not in shown


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
