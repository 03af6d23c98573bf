"""The breaks of `make breaks` stay applicable: each names one line of the product, and tests that exist."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.breaks.sources import ROOT, has_test, place_of, read_sources
from tests.breaks.table import BREAKS


def test_each_break_changes_one_line_of_the_product():
    modules = read_sources(ROOT)
    for each in BREAKS:
        module = modules[place_of(each.text, modules)]
        assert "\n" not in each.text + each.becomes
        assert each.becomes != each.text
        ast.parse(module.replace(each.text, each.becomes))


def test_each_break_has_a_name_of_its_own_and_unit_tests_before_slower_ones():
    assert len({each.name for each in BREAKS}) == len(BREAKS)
    for each in BREAKS:
        assert each.tests
        assert [test for test in each.tests if not has_test(ROOT, test)] == [], each.name
        assert list(each.tests) == sorted(each.tests, key=lambda test: not test.startswith("tests/unit/")), each.name


@pytest.mark.parametrize(("module", "where"), [("x = 2\n", "no module"), ("x = 1\nx = 1\n", "a.py, a.py")])
def test_a_text_that_is_missing_or_ambiguous_is_an_error(module: str, where: str):
    with pytest.raises(LookupError, match=f"{where} has this text; expected one place"):
        place_of("x = 1", {Path("a.py"): module})
