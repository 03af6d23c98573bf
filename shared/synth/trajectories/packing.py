"""Arrays and their description as one safetensors body: never JSON, which would cost a thousand times as much.

torch reads the arrays without a copy. The body is written and read here: for arrays as small as a rollout's, the
safetensors package takes three times as long for the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from synth.images.prompt_image import PromptImage
from synth.transcripts.batch_header import LENGTH_BYTES, header_length

Int32 = npt.NDArray[np.int32]
Float32 = npt.NDArray[np.float32]
Bool = npt.NDArray[np.bool_]

#: The types of arrays by their names in a body, in the order in which safetensors writes the arrays.
_DTYPES = {
    name: np.dtype(dtype)
    for name, dtype in (("I64", "<i8"), ("F64", "<f8"), ("F32", "<f4"), ("I32", "<i4"), ("U8", "u1"), ("BOOL", "?"))
}
_NAMES = {dtype.char: name for name, dtype in _DTYPES.items()}
_ORDER = {dtype.char: place for place, dtype in enumerate(_DTYPES.values())}


def concatenate(parts: list[npt.NDArray[Any]], dtype: Any) -> npt.NDArray[Any]:
    """Join the parts end to end to one array of this dtype; without parts it is empty."""
    return np.concatenate(parts).astype(dtype) if parts else np.zeros(0, dtype)


def images_to_array(images: Sequence[tuple[str, tuple[PromptImage, ...]]]) -> npt.NDArray[np.uint8]:
    """Return the image processor and the images of each sequence as an array to be packed.

    They do not fit into the description, which may have at most 100 MB.
    """
    return np.frombuffer(msgspec.json.encode(images), np.uint8)


def images_from_array(array: npt.NDArray[np.uint8]) -> list[tuple[str, tuple[PromptImage, ...]]]:
    """Read the result of `images_to_array`."""
    return msgspec.json.decode(array.tobytes(), type=list[tuple[str, tuple[PromptImage, ...]]])


def pack_arrays(arrays: dict[str, npt.NDArray[Any]], meta: Any) -> bytes:
    """Return the arrays as one safetensors body. meta: JSON data, kept in its header."""
    header: dict[str, Any] = {"__metadata__": {"synth": json.dumps(meta)}}
    parts: list[bytes] = []
    end = 0
    for _, name, dtype in sorted((_ORDER[array.dtype.char], name, array.dtype.char) for name, array in arrays.items()):
        parts.append(arrays[name].tobytes())
        begin, end = end, end + len(parts[-1])
        header[name] = {"dtype": _NAMES[dtype], "shape": arrays[name].shape, "data_offsets": (begin, end)}
    text = msgspec.json.encode(header)
    # The arrays begin at a multiple of the largest item, the largest items first, so that each is aligned.
    text += b" " * (-len(text) % LENGTH_BYTES)
    return b"".join((len(text).to_bytes(LENGTH_BYTES, "little"), text, *parts))


def unpack_arrays(body: bytes) -> tuple[dict[str, npt.NDArray[Any]], Any]:
    """Return the arrays and the description that `pack_arrays` wrote. Raises `ValueError` on any other body."""
    start = LENGTH_BYTES + header_length(body)
    try:
        header: dict[str, Any] = json.loads(body[LENGTH_BYTES:start])
        meta = json.loads(header.pop("__metadata__")["synth"])
        data = bytearray(memoryview(body)[start:])  # a copy that may be written, like any other array
        arrays: dict[str, npt.NDArray[Any]] = {}
        for name, entry in header.items():
            begin, end = entry["data_offsets"]
            arrays[name] = np.ndarray(entry["shape"], _DTYPES[entry["dtype"]], data, begin)
            if arrays[name].nbytes != end - begin:
                raise ValueError(f"{name} has {end - begin} bytes")
        return arrays, meta
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"not a body of this format: {error}") from error
