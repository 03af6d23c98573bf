"""A file of prompts: rows that end with the user's message, and are to be answered."""

from __future__ import annotations

import json
from typing import Any

from synth.datasets.check import FileCheck
from synth.datasets.refused import prompts_refused, rows_refused
from synth.events import FileReady, FileRejected

ASK = {"role": "user", "content": "2 + 2?"}
SAY = {"role": "assistant", "content": "4"}


def _checked(*rows: list[dict[str, Any]]) -> FileReady | FileRejected:
    check = FileCheck()
    for row in rows:
        line = json.dumps({"messages": row, "answer": "4"}).encode() + b"\n"
        # In pieces, as it arrives.
        check.feed(line[:7])
        check.feed(line[7:])
    return check.finish()


def test_prompts_are_counted():
    found = _checked([ASK], [{"role": "system", "content": "Be brief."}, ASK], [ASK, SAY, ASK])
    assert isinstance(found, FileReady)
    assert (found.rows, found.prompts, found.unanswered) == (3, 3, 2)


def test_an_answer_in_a_file_of_prompts_is_told_with_its_line():
    found = _checked([ASK], [ASK, SAY])
    assert isinstance(found, FileRejected)
    assert [(p.line, p.path) for p in found.problems] == [(2, "$.messages")]
    assert "not the user's" in found.problems[0].reason


def test_a_prompt_in_a_file_of_conversations_has_nothing_to_learn_from():
    found = _checked([ASK, SAY], [ASK])
    assert isinstance(found, FileRejected)
    assert [(p.line, p.reason) for p in found.problems] == [(2, "no assistant message to learn from")]


def test_what_is_played_must_be_there_and_end_with_the_user():
    fits: dict[str, Any] = {"rows": 4, "prompts": 4, "images": 0, "last": 3, "where": ""}
    assert prompts_refused("f", **fits) is None
    for change, words in (({"prompts": 3}, "1 rows whose"), ({"images": 1}, "images"), ({"last": 4}, "row 4")):
        refused = prompts_refused("f", **{**fits, **change})
        assert refused is not None
        assert words in refused.what


def test_nobody_learns_to_answer_from_prompts_alone():
    for dpo in (False, True):
        refused = rows_refused("f", pairs=False, dpo=dpo, unanswered=True, where="")
        assert refused is not None
        assert "prompts without answers" in refused.what
