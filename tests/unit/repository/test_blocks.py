"""Every block of the pages is run by a test, or says what it is: output, a file, or why it is not run."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from synth.jobs.parse.validate import load_job
from tests.docs.blocks import CODE, COMMANDS, CONFIGS, OUTPUT, PAGES, ROOT, Block, blocks_of

BLOCKS = [block for page in PAGES for block in blocks_of(page)]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.place)
def test_every_block_is_run_or_says_what_it_is(block: Block):
    known = COMMANDS | CODE | CONFIGS | OUTPUT
    assert block.language in known, f"say what it is: one of {', '.join(sorted(known))} behind the fence"
    match block.mark:
        case "not run":
            assert len(block.value.split()) > 3, "say why it is not run"
        case "run by":
            test = ROOT / block.value
            assert test.is_file(), block.value
            assert block.page.name in test.read_text(), f"{block.value} does not read {block.page.name}"
        case "file":
            assert re.fullmatch(r"[\w./-]+", block.value), "say the file's name"
        case "second terminal":
            assert block.language in COMMANDS
        case _:
            assert block.value == ""
    if block.language in CONFIGS:
        assert load_job(block.text, name=block.place).kind
    if block.language in CODE:
        ast.parse(block.text)


def test_no_fence_is_lost():
    for page in PAGES:
        fences = len(re.findall(r"^ *```", page.read_text(), re.MULTILINE))
        assert fences == 2 * len([*blocks_of(page)]), page


def test_a_mark_stands_right_before_its_block():
    for page in PAGES:
        marks = len(re.findall(r"^ *<!-- (?:not run|run by|file|second terminal)\b", page.read_text(), re.MULTILINE))
        assert marks == sum(bool(block.mark) for block in blocks_of(page)), page


def test_what_no_test_runs_is_listed_with_its_reason(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text("Text.\n\n<!-- not run: there is no GPU here -->\n```bash\nls\n```\n\n  ```text\n  a\n  ```\n")
    first, second = blocks_of(page)
    assert (first.line, first.mark, first.value, first.runs) == (4, "not run", "there is no GPU here", False)
    assert (second.text, second.mark) == ("a\n", "")
