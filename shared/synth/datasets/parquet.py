"""Parquet files of rows, as the JSONL that they would be: a line for each row, at constant memory.

A column is a field of the row. A null is a field that is not there, since a column of structs has in every row the
fields of all. An image as Hugging Face's datasets store one, `{bytes, path}`, is its bytes as a data URI.
"""

from __future__ import annotations

import base64
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import msgspec

#: How a Parquet file begins.
MAGIC = b"PAR1"
#: The name under which its rows are counted among the converted ones.
PARQUET = "parquet"
_IMAGE_FIELDS = {"bytes", "path"}
_SIGNATURES = {b"\x89PNG": "png", b"\xff\xd8\xff": "jpeg", b"GIF8": "gif", b"RIFF": "webp"}
#: Rows that are in memory at one time.
_ROWS = 64
_BUFFER_BYTES = 1 << 20
#: Bytes of JSONL that are yielded at one time.
_PIECE_BYTES = 1 << 20


class ParquetUnreadable(Exception):
    """The file cannot be read as Parquet; the text has the reason."""


def is_parquet(file: Path) -> bool:
    """Return whether a file begins with Parquet's mark."""
    with file.open("rb") as opened:
        return opened.read(len(MAGIC)) == MAGIC


def parquet_lines(file: Path) -> Iterator[bytes]:
    """Yield the rows as JSONL, in pieces of whole lines. Raises `ParquetUnreadable`."""
    # Imported here: a plain client has no pyarrow.
    pyarrow: Any = importlib.import_module("pyarrow")
    parquet: Any = importlib.import_module("pyarrow.parquet")
    encoder, lines, size = msgspec.json.Encoder(), list[bytes](), 0
    try:
        # Each column has its own buffer; otherwise a whole group of rows would be read.
        with parquet.ParquetFile(file, buffer_size=_BUFFER_BYTES, pre_buffer=False) as opened:
            for batch in opened.iter_batches(batch_size=_ROWS, use_threads=False):
                for row in batch.to_pylist():
                    lines.append(encoder.encode(_as_json(row)) + b"\n")
                    size += len(lines[-1])
                    if size >= _PIECE_BYTES:
                        yield b"".join(lines)
                        lines, size = [], 0
    except (pyarrow.ArrowException, OSError, ValueError, TypeError) as error:
        raise ParquetUnreadable(f"not a Parquet file that can be read: {error}") from error
    if lines:
        yield b"".join(lines)


def _as_json(value: Any) -> Any:
    if isinstance(value, dict):
        table = cast(dict[str, Any], value)
        if table.keys() == _IMAGE_FIELDS and isinstance(table["bytes"], bytes):
            return _data_uri(table["bytes"])
        return {name: _as_json(inner) for name, inner in table.items() if inner is not None}
    if isinstance(value, list):
        return [_as_json(inner) for inner in cast(list[Any], value)]
    return _data_uri(value) if isinstance(value, bytes) else value


def _data_uri(body: bytes) -> str:
    kind = next((kind for signature, kind in _SIGNATURES.items() if body.startswith(signature)), None)
    media = f"image/{kind}" if kind else "application/octet-stream"
    return f"data:{media};base64,{base64.b64encode(body).decode()}"
