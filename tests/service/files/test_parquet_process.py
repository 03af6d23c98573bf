"""Parquet files that unpack to far more than they are: rejected, and nothing but their own process runs short."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from synth.datasets.parquet import ParquetUnreadable, parquet_lines
from synth.files.parquet_process import read_parquet
from synth.sandbox.decoders import open_for_decoding

MEMORY = 1 << 30


async def rows_of(file: Path, *, most: int = 1 << 40) -> bytes:
    sandbox = await open_for_decoding("auto")
    return b"".join(
        [piece async for piece in read_parquet(file, memory_bytes=MEMORY, most_bytes=most, sandbox=sandbox)]
    )


def write(file: Path, prompt: str, rows: int) -> Path:
    table = pa.table({"prompt": pa.DictionaryArray.from_arrays(pa.array([0] * rows), pa.array([prompt]))})
    parquet.write_table(table.append_column("completion", pa.array(["yes"] * rows)), file, compression="zstd")
    return file


async def test_a_file_is_the_same_lines_as_in_one_process(tmp_path: Path):
    file = write(tmp_path / "a.parquet", "again?", 20_000)
    assert await rows_of(file) == b"".join(parquet_lines(file))


async def test_a_value_that_stands_in_every_row_takes_no_memory_of_the_service(tmp_path: Path):
    """64 rows, which are read at once, of 64 MB each."""
    file = write(tmp_path / "a.parquet", "a" * (64 << 20), 64)
    assert file.stat().st_size < 1 << 20
    with pytest.raises(ParquetUnreadable, match="more than 1,073,741,824 bytes of memory: write it with smaller"):
        await rows_of(file)


async def test_rows_without_end_are_not_all_read(tmp_path: Path):
    file = write(tmp_path / "a.parquet", "a" * 1000, 100_000)
    assert file.stat().st_size < 1 << 20
    with pytest.raises(ParquetUnreadable, match="more than 10,000,000 bytes of JSONL: divide the file"):
        await rows_of(file, most=10_000_000)


async def test_what_only_begins_as_parquet_says_so(tmp_path: Path):
    (tmp_path / "a.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(ParquetUnreadable, match="not a Parquet file that can be read"):
        await rows_of(tmp_path / "a.parquet")
