"""Parquet files and folders of Hugging Face's datasets: the rows are those of the JSONL that they would be."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest
from pyarrow import parquet

from synth.cli.checking.dataset import check_dataset
from synth.datasets.conversations import read_line
from synth.datasets.parquet import ParquetUnreadable, parquet_lines
from synth.datasets.rows import Row
from synth.datasets.sources import read_pieces, source_files
from synth.errors import UserError
from tests.image_server import PNG

CHAT = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}
CALLS = {
    "messages": [
        {"role": "user", "content": "q"},
        {"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": "{}"}}]},
        {"role": "tool", "content": "3"},
        {"role": "assistant", "content": "a", "weight": 1.0},
    ],
    "tools": [{"name": "f", "parameters": {"type": "object"}}],
}
TURNS = [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]


def write(path: Path, rows: list[dict[str, Any]], **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.Table.from_pylist(rows), path, **options)
    return path


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in b"".join(read_pieces(path)).splitlines()]


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param([CALLS, CHAT, CALLS], id="nulls where one row has more fields"),
        pytest.param([{"conversations": TURNS, "id": "x"}] * 3, id="sharegpt"),
        pytest.param([{"instruction": "q", "input": "", "output": "a"}], id="alpaca"),
        pytest.param([{"prompt": "q", "chosen": "a", "rejected": "b", "score": 0.5}], id="pairs"),
    ],
)
def test_rows_come_back_as_they_went_in(tmp_path: Path, rows: list[dict[str, Any]]):
    found = rows_of(write(tmp_path / "a.parquet", rows))
    assert found == rows
    assert all(isinstance(read_line(json.dumps(row).encode()), Row) for row in found)


def test_an_image_is_a_data_uri(tmp_path: Path):
    row = {**CHAT, "images": [{"bytes": PNG, "path": "a.png"}]}
    [found] = rows_of(write(tmp_path / "a.parquet", [row]))
    assert found["images"] == [f"data:image/png;base64,{base64.b64encode(PNG).decode()}"]


def test_what_only_begins_as_parquet_says_so(tmp_path: Path):
    whole = write(tmp_path / "a.parquet", [CHAT]).read_bytes()
    for body in (b"PAR1", whole[:-9], whole[: len(whole) // 2]):
        (tmp_path / "b.parquet").write_bytes(body)
        with pytest.raises(ParquetUnreadable, match="not a Parquet file that can be read"):
            list(parquet_lines(tmp_path / "b.parquet"))
        assert check_dataset(tmp_path / "b.parquet").problems[0].what.startswith("not a Parquet file")


def test_a_large_group_of_rows_is_never_held_whole(tmp_path: Path):
    text = "word " * 4000
    rows = [{"prompt": f"{i} {text}", "completion": text} for i in range(8000)]
    # One group of rows, of two columns of 160 MB each.
    path = write(tmp_path / "a.parquet", rows, row_group_size=len(rows), use_dictionary=False, compression="none")
    del rows
    process, held, total = psutil.Process(), 0, 0
    pa.default_memory_pool().release_unused()
    before = process.memory_info().rss
    for piece in parquet_lines(path):
        total += len(piece)
        held = max(held, process.memory_info().rss - before)
    assert total > 300 << 20
    assert held < 100 << 20


def test_a_folder_gives_its_train_split_in_order(tmp_path: Path):
    for k in (1, 0):
        write(tmp_path / "data" / f"train-0000{k}-of-00002.parquet", [{**CHAT, "idx": k}])
    write(tmp_path / "data" / "test-00000-of-00001.parquet", [CHAT])
    (tmp_path / "dataset_info.json").write_text("{}")
    (tmp_path / "README.md").write_text("# a dataset")
    files = source_files(tmp_path)
    assert [file.name for file in files] == ["train-00000-of-00002.parquet", "train-00001-of-00002.parquet"]
    assert [row["idx"] for file in files for row in rows_of(file)] == [0, 1]
    report = check_dataset(tmp_path)
    assert (report.problems, report.pairs) == ([], False)


def test_files_of_a_folder_that_lack_a_last_newline_are_kept_apart(tmp_path: Path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(CHAT))
    assert check_dataset(tmp_path).problems == []


@pytest.mark.parametrize(
    ("names", "what"),
    [
        ((), "holds no rows"),
        (("test.jsonl", "validation.jsonl"), "no train split, but test, validation"),
        (("train.jsonl", "train.parquet"), ".jsonl and .parquet"),
    ],
)
def test_a_folder_that_leaves_a_choice_is_refused(tmp_path: Path, names: tuple[str, ...], what: str):
    for name in names:
        (tmp_path / name).write_text("x")
    with pytest.raises(UserError, match=what):
        source_files(tmp_path)
