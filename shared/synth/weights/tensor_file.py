"""Safetensors files: written in one pass that hashes them too, and read whole or a tensor at a time.

The library's own writer holds a copy of every byte, and of the interpreter's lock, until the file is there. This one
writes tensor after tensor, so that a thread can do it while another trains.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import msgspec
import torch
from safetensors import safe_open
from torch import Tensor

from synth.weights.durable import commit

#: As the format names them: https://huggingface.co/docs/safetensors, "Format".
_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_PIECE = 8 << 20


class FileDigest(msgspec.Struct, frozen=True):
    """The digest of a file. sha256: hex. size: bytes."""

    sha256: str
    size: int


def save_tensors(
    path: Path,
    tensors: Mapping[str, Tensor],
    *,
    header: dict[str, str] | None = None,
    progress: Callable[[int], None] | None = None,
) -> FileDigest:
    """Write tensors as safetensors, so that a crash leaves the whole file or none. Returns its digest.

    The same tensors give the same bytes. progress: called with the number of bytes of each piece that is written.
    """
    return write_hashed(path, _pieces(tensors, header), progress=progress)


def write_hashed(
    path: Path, pieces: Iterable[bytes | memoryview], *, progress: Callable[[int], None] | None = None
) -> FileDigest:
    """Write a file piece by piece, so that a crash leaves all of it or nothing, and hash it on the way.

    progress: called with the number of bytes of each piece that is written.
    """
    partial = path.with_name(f".{path.name}.partial")
    digest = hashlib.sha256()
    with partial.open("wb") as file:
        for piece in pieces:
            digest.update(piece)
            file.write(piece)
            if progress is not None:
                progress(len(piece))
        size = file.tell()
    commit(partial, path)
    return FileDigest(digest.hexdigest(), size)


def _pieces(tensors: Mapping[str, Tensor], header: dict[str, str] | None) -> Iterator[bytes | memoryview]:
    # Tensors with the widest numbers come first: then each begins at a multiple of its width.
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    table: dict[str, Any] = {} if header is None else {"__metadata__": header}
    end = 0
    for name in names:
        tensor = tensors[name]
        begin, end = end, end + tensor.numel() * tensor.element_size()
        table[name] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    head = json.dumps(table, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    yield len(head).to_bytes(8, "little") + head
    for name in names:
        if not tensors[name].numel():
            continue  # torch cannot see an empty tensor as bytes
        body = tensors[name].detach().to("cpu").contiguous().reshape(-1).view(torch.uint8).numpy().data
        for begin in range(0, len(body), _PIECE):
            yield body[begin : begin + _PIECE]


def hash_file(path: Path) -> FileDigest:
    """Return the digest of an existing file."""
    with path.open("rb") as file:
        return FileDigest(hashlib.file_digest(file, "sha256").hexdigest(), os.fstat(file.fileno()).st_size)


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors of a safetensors file, on the CPU, and its header. Raises `SafetensorError` or `OSError`."""
    with cast(Any, safe_open(path, framework="pt")) as file:
        tensors: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        header: dict[str, str] = file.metadata() or {}
    return tensors, header


class TensorFiles(Mapping[str, Tensor]):
    """The tensors of some safetensors files, each read when it is requested: no process holds them all.

    Raises `SafetensorError` or `OSError`.
    """

    def __init__(self, paths: list[Path]) -> None:
        self._file_of: dict[str, Any] = {}
        for path in paths:
            file = cast(Any, safe_open(path, framework="pt"))
            self._file_of |= dict.fromkeys(file.keys(), file)

    def __getitem__(self, name: str) -> Tensor:
        return self._file_of[name].get_tensor(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._file_of)

    def __len__(self) -> int:
        return len(self._file_of)
