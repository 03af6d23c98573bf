"""Tables and labelled values on terminals of any width: wrapped, or below each other, and never cut."""

from __future__ import annotations

import io
import random
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from synth.cli.tui.output import named_values, number
from synth.cli.tui.tables.labelled import labelled
from synth.cli.tui.tables.rows import Rows, flow
from synth.cli.tui.tables.side_by_side import SideBySide
from synth.console.safe import SafeConsole

ID = "rl:tiny-qwen3:job_c603e2c28543c336"


def drawn(width: int, *what: Any) -> list[str]:
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(*what)
    return [line.rstrip() for line in console.export_text().splitlines()]


def jobs(*, name: str = "first", model: str = ID) -> Rows:
    return Rows(
        ("id", "name", "step", "model"), [["job_1", name, "3/3", model], ["job_2", "b", "-", "-"]], wrap="model"
    )


def test_a_table_that_fits_is_one():
    assert drawn(60, jobs()) == [
        "ID     NAME   STEP  MODEL",
        f"job_1  first  3/3   {ID}",
        "job_2  b      -     -",
    ]


def test_what_cannot_be_wrapped_stands_below_its_row_with_its_name():
    assert drawn(50, jobs()) == ["ID     NAME   STEP", "job_1  first  3/3", f"  model {ID}", "job_2  b      -"]


def test_a_sentence_is_wrapped_in_its_column():
    assert drawn(44, jobs(model="what the job has made of it")) == [
        "ID     NAME   STEP  MODEL",
        "job_1  first  3/3   what the job has made of",
        "                    it",
        "job_2  b      -     -",
    ]


def test_a_word_that_is_too_long_for_the_column_stands_below_its_row_alone():
    rows = Rows(("key", "value", "from"), [["a", "short", "x"], ["b", "w" * 40, "y"]], wrap="value")
    assert drawn(44, rows) == [
        "KEY  VALUE                              FROM",
        "a    short                              x",
        "b                                       y",
        "  value",
        f"  {'w' * 40}",
    ]


def test_where_not_even_the_others_fit_a_row_is_lines_of_names_and_values():
    assert drawn(42, jobs(name="a name that takes all the room")) == [
        "job_1  name a name that takes all the room",
        "  step 3/3",
        f"  model {ID}",
        "job_2  name b",
    ]


def test_a_number_says_what_it_counts_and_a_long_value_is_indented():
    rows = Rows(("seq", "what"), [["12", "one two three four five six"]])
    assert drawn(20, rows) == ["seq 12", "  what one two three", "  four five six"]


@pytest.mark.parametrize("width", range(20, 100, 7))
def test_nothing_of_a_table_is_lost_or_too_wide_at_any_width(width: int):
    shown = drawn(width, jobs(name="a name of some words"))
    assert max(map(len, shown)) <= width
    joined = "".join("".join(shown).split())
    for value in ("job_1", "anameofsomewords", "3/3", ID, "job_2"):
        assert value in joined


def test_a_value_stands_below_its_label_where_it_would_be_broken_beside_it():
    pairs = labelled([(Text("id"), Text("job_1")), (Text("evaluation"), Text(ID))])
    assert drawn(60, *pairs) == ["id          job_1", f"evaluation  {ID}"]
    assert drawn(40, *pairs) == ["id          job_1", "evaluation", f"  {ID}"]


def test_parts_are_broken_between_and_not_within():
    parts = [Text("lr 0.1"), Text("grad norm 1.8"), Text("kl 0")]
    assert drawn(20, flow(parts, 16)) == ["lr 0.1", "grad norm 1.8", "kl 0"]


def test_figures_are_short_for_people_and_whole_for_programs():
    values = named_values([("loss", 1.23456789), ("memory", 383_991_808.0)])
    assert values == "loss=1.235  memory=384M"
    assert getattr(values, "raw", "") == "loss=1.23456789 memory=383991808.0"
    assert [number(v) for v in (999_999.4, 1e6, 2.5e9, 1e12)] == ["999,999", "1M", "2.5G", "1e+12"]


@pytest.mark.parametrize("alphabet", ["日本語 ab", "é̂̀ ab", "👩👨\u200d🏿🦱 ab", "❤\ufe0f\u200d\u200d ab"])
def test_text_of_any_script_is_wrapped_by_the_columns_that_its_characters_take(alphabet: str):
    random_ = random.Random(alphabet)
    for _ in range(300):
        text = "".join(random_.choices(alphabet, k=random_.randrange(1, 80)))
        width = random_.choice([12, 30, 44])
        rows = Rows(("id", "text"), [["1", text], ["2", "b"]], wrap="text")
        console = SafeConsole(width=width, file=io.StringIO(), record=True)
        console.print(rows, *labelled([(Text("reply"), Text(text))]), SideBySide(["A"], [("reply", [text])], [""]))
        assert max(map(cell_len, console.export_text().splitlines())) <= width, repr(text)
