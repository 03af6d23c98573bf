"""Arrays and their description as one safetensors body: never JSON, which would cost a thousand times as much.

torch reads the arrays without a copy.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from safetensors.numpy import load, save

from synth.images.prompt_image import PromptImage
from synth.transcripts.batch_header import LENGTH_BYTES, header_length, read_description

Int32 = npt.NDArray[np.int32]
Float32 = npt.NDArray[np.float32]
Bool = npt.NDArray[np.bool_]


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
    # safetensors writes a non-contiguous array wrongly, without an error.
    contiguous = {k: np.ascontiguousarray(v) for k, v in arrays.items()}
    return save(contiguous, metadata={"synth": json.dumps(meta)})


def unpack_arrays(body: bytes) -> tuple[dict[str, npt.NDArray[Any]], Any]:
    """Return the arrays and the description that `pack_arrays` wrote. Raises `ValueError` on any other body."""
    meta = read_description(body[LENGTH_BYTES : LENGTH_BYTES + header_length(body)])
    try:
        return load(body), meta
    except (KeyError, ValueError) as error:
        raise ValueError(f"not a body of this format: {error}") from error
