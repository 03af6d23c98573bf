"""Lines end at CR, LF and CRLF, and nowhere else."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from synth.api.sse import SseEvent, SseReader, data_event
from synth.runtime.environment.env_file import read_env_file
from synth.runtime.lines import read_lines, split_lines

#: What `str.splitlines` takes for the end of a line, and the format of no protocol does.
TEXT = ["\u2028", "\u2029", "\u0085", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e"]


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"])
@pytest.mark.parametrize("character", TEXT)
def test_a_line_ends_at_each_of_three_ends_only(character: str, end: str):
    text = f"a{character}b{end}{character}{end}{end}c"
    lines = [f"a{character}b", character, "", "c"]
    assert split_lines(text) == lines
    assert split_lines(text.encode()) == [line.encode() for line in lines]
    assert split_lines(text + end) == lines


@given(st.lists(st.text(alphabet=["a", "\r", "\n", "\u2028", "é"], max_size=6)))
def test_lines_do_not_depend_on_how_a_body_arrives(pieces: list[str]):
    body = "".join(pieces)
    assert [line.decode() for line in read_lines(bytes([b]) for b in body.encode())] == split_lines(body)
    assert [line.decode() for line in read_lines(piece.encode() for piece in pieces)] == split_lines(body)


def test_a_line_is_there_as_soon_as_its_end_is():
    pieces = iter([b"data: a\r", b"\n", b"data: b"])
    lines = read_lines(pieces)
    assert next(lines) == b"data: a"
    assert next(pieces) == b"\n"


@pytest.mark.parametrize("character", TEXT)
def test_an_event_holds_such_a_character_as_text(character: str):
    said = {"content": f"a{character}b"}
    for body in (data_event(said), b"data: " + msgspec.json.encode(said) + b"\r\n\r\n"):
        (event,) = SseReader().feed(body)
        assert event is not None
        assert msgspec.json.decode(event.data) == said
    # A client that splits at every Unicode line end reads what this platform writes.
    first, *rest = data_event(said).decode().splitlines()
    assert msgspec.json.decode(first.removeprefix("data: ")) == said
    assert rest == [""]


def test_events_are_read_over_comments_several_data_lines_and_every_line_end():
    lines = [": ping", "id: 7", "event: train.step", "data: a", "data:b", "", "retry: 100", "", "event: end", "", ""]
    for end in ("\n", "\r", "\r\n"):
        body = end.join(lines).encode()
        for pieces in ([body], [body[i : i + 1] for i in range(len(body))]):
            reader = SseReader()
            assert [event for piece in pieces for event in reader.feed(piece)] == [
                None,
                SseEvent("7", "train.step", "a\nb"),
                SseEvent("7", "end", ""),
            ]


@pytest.mark.parametrize("character", TEXT)
def test_a_value_of_an_env_file_holds_such_a_character(tmp_path, character: str):
    (tmp_path / ".env").write_bytes(f"A=x{character}B=y\r\nC='{character}'\rD=1\n".encode())
    assert read_env_file(tmp_path / ".env") == {"A": f"x{character}B=y", "C": character, "D": "1"}
