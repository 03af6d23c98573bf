"""Foreign JSON as it is kept: plain, and within its limit."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from synth.transcripts.plain import to_plain
from synth.transcripts.shorten import json_size, share_out, shorten

PNG = b"\x89PNG\r\n\x1a\n" + bytes(80)
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 80), 1 << 80) | st.floats() | st.text(max_size=400),
    lambda inner: st.lists(inner, max_size=40) | st.dictionaries(st.text(max_size=20), inner, max_size=12),
    max_leaves=60,
)


def test_small_values_stay_whole_and_large_ones_share_what_is_left():
    assert share_out([10, 500, 20, 900], 430) == [10, 200, 20, 200]
    assert share_out([10, 20], 1000) == [10, 20]


def test_a_text_keeps_its_beginning_and_its_end_and_says_what_it_lacks():
    text = "begin " + "x" * 5000 + " end"
    cut = shorten(text, 200)
    assert json_size(cut) <= 200
    assert cut.startswith("begin ")
    assert cut.endswith(" end")
    assert "characters cut" in cut


def test_a_list_keeps_its_first_and_its_last_items():
    cut = shorten([{"step": n, "board": "." * 50} for n in range(1000)], 1000)
    assert (cut[0]["step"], cut[-1]["step"]) == (0, 999)
    assert any("items left out" in item for item in cut if isinstance(item, str))
    assert json_size(cut) < 1500


def test_a_field_whose_name_cannot_be_told_from_another_s_is_said_to_be_left_out():
    cut = shorten({f"{'x' * 100}{n}{'y' * 100}": "." * 100 for n in range(2)}, 200)
    assert len(cut) == 2
    assert cut["…"] == "[1 fields left out]"


@given(ANY_JSON, st.integers(100, 4000))
def test_whatever_it_is_it_fits_roughly_and_is_json(value: Any, limit: int):
    cut = shorten(to_plain(value), limit)
    # A number or a name cannot be shortened below itself, so the limit is met but for what nests deeply.
    assert json_size(cut) <= max(limit, 48) * 6
    msgspec.json.decode(msgspec.json.encode(cut))


def test_what_fits_is_not_touched():
    value = {"a": [1, 2.5, None, True, "text"], "b": {}}
    assert shorten(to_plain(value), 1000) == value


@pytest.mark.parametrize(
    "text", [base64.b64encode(PNG).decode(), "data:image/png;base64," + base64.b64encode(PNG).decode()]
)
def test_an_image_is_its_digest(text: str):
    plain = to_plain({"frames": [text]})
    assert plain == {"frames": [{"image": "image/png", "bytes": 88, "sha256": hashlib.sha256(PNG).hexdigest()}]}


def test_an_image_that_cannot_be_decoded_is_its_length_and_any_other_text_stays_whole():
    broken = "*" * 80
    assert to_plain(f"data:image/png;base64,{broken}") == {"image": "image/png", "chars": 80}
    assert to_plain(f"data:text/plain;base64,{broken}") == f"data:text/plain;base64,{broken}"


def test_what_no_encoder_takes_becomes_text():
    deep: Any = "end"
    for _ in range(500):
        deep = [deep]
    value = {"half": json.loads('"\\ud800"'), "huge": 1 << 200, "deep": deep, "odd": {1, 2}}
    plain = to_plain(value)
    assert plain["huge"] == str(1 << 200)
    assert "nested more than" in str(plain["deep"])
    msgspec.json.encode(plain)
