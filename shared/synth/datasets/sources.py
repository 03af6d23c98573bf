"""A dataset on this machine: a JSONL or Parquet file, or a folder as Hugging Face's datasets are laid out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from synth.datasets.parquet import is_parquet, parquet_lines
from synth.errors import UserError

_SUFFIXES = (".parquet", ".jsonl", ".json")
_PIECE = 1 << 20
_SPLIT = re.compile(r"(?:^|[^a-z])(train|test|validation|valid|val|dev|eval)(?:[^a-z]|$)")


def source_files(path: Path) -> list[Path]:
    """Return the files of a dataset, in order: the file itself, or a folder's files of the train split or no split.

    Raises `UserError` for a folder without rows, with files of other splits only, or in two formats.
    """
    if not path.is_dir():
        return [path]
    visible = (f for f in path.rglob("*") if not any(p.startswith(".") for p in f.relative_to(path).parts))
    files = sorted(f for f in visible if f.is_file() and f.suffix in _SUFFIXES and not _is_about(f))
    splits = {file: _split(file, path) for file in files}
    chosen = [file for file in files if splits[file] == "train"] or [f for f in files if splits[f] is None]
    if not files:
        what, fix = "the folder holds no rows", "name a file"
    elif not chosen:
        names = ", ".join(sorted({split for split in splits.values() if split}))
        what, fix = f"the folder has no train split, but {names}", "name the files that you mean, one by one"
    elif len({file.suffix for file in chosen}) > 1:
        names = " and ".join(sorted({file.suffix for file in chosen}))
        what, fix = f"the folder holds its rows as {names}", "keep one of the two formats, or name a file"
    else:
        return chosen
    raise UserError(what, expected=f"files of one train split: {', '.join(_SUFFIXES)}", fix=fix, where=str(path))


def read_pieces(file: Path) -> Iterator[bytes]:
    """Yield a file's rows as JSONL, in pieces; the last line ends with a newline. Raises `ParquetUnreadable`."""
    if is_parquet(file):
        yield from parquet_lines(file)
        return
    last = b"\n"
    with file.open("rb") as opened:
        while piece := opened.read(_PIECE):
            yield piece
            last = piece
    if not last.endswith(b"\n"):
        yield b"\n"


def without_columns(pieces: Iterator[bytes], dropped: dict[str, int]) -> Iterator[bytes]:
    """Yield the rows of JSONL without some columns, as lines. dropped: their names; the rows that had one are counted.

    A line that is not an object is yielded unchanged, for the check to refuse it.
    """
    rest = b""
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield _without(line, dropped) + b"\n"
    if rest:
        yield _without(rest, dropped)


def _without(line: bytes, dropped: dict[str, int]) -> bytes:
    try:
        row = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return line
    names = [name for name in dropped if name in row]
    for name in names:
        dropped[name] += 1
        del row[name]
    return msgspec.json.encode(row) if names else line


def _is_about(file: Path) -> bool:
    """Return whether a file describes the dataset and holds no rows."""
    return file.name in ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json")


def _split(file: Path, folder: Path) -> str | None:
    """Return the split in a file's name, else in a folder's above it: `data/train-00000-of-00002.parquet`."""
    for part in reversed(file.relative_to(folder).parts):
        if match := _SPLIT.search(part.lower()):
            return match[1]
    return None
