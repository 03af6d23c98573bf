"""Files in the shapes that other trainers document: each is read, or refused by the key that is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from synth.chat.messages import PreferenceRow, TrainingRow
from synth.datasets.check import FileCheck
from synth.datasets.conversations import canonical_line
from synth.events import FileReady, FileRejected

#: One file a line: its rows, and either the rows as they are trained on or the place of what is refused.
DEMOS: list[dict[str, Any]] = [
    json.loads(line) for line in Path(__file__).with_name("demos.jsonl").read_text().splitlines()
]
COLUMNS = {
    "llamafactory_videos": "`videos` (models here see text and images)",
    "swift_audios": "`audios` (models here see text and images)",
    "swift_dpo_images": "`rejected_images` (both sides of a pair are shown the same images)",
    "swift_grounding": "`objects` (boxes are not drawn into a row",
    "trl_prompt_only": "missing required field `completion`",
}


@pytest.mark.parametrize("demo", DEMOS, ids=[demo["name"] for demo in DEMOS])
def test_a_file_of_another_trainer_is_read_or_refused_by_name(demo: dict[str, Any]):
    lines = [json.dumps(row).encode() for row in demo["rows"]]
    check = FileCheck()
    check.feed(b"\n".join(lines))
    found = check.finish()
    if "refused" in demo:
        assert isinstance(found, FileRejected)
        assert found.problems[0].path == demo["refused"]
        assert COLUMNS.get(demo["name"], "") in found.problems[0].reason
        return
    assert isinstance(found, FileReady), found
    assert found.annotations == demo.get("annotations", {})
    trained = [canonical_line(line) for line in lines]
    assert [json.loads(line) for line in trained] == demo["trained"]
    for line in trained:
        msgspec.json.decode(line, type=PreferenceRow if found.pairs else TrainingRow)
