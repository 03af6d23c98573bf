"""Arrays and their description as one safetensors body: never JSON, which would cost a thousand times as much.

torch reads the arrays without a copy.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load, save

from synth.transcripts.batch_header import LENGTH_BYTES, header_length, read_description

Int32 = npt.NDArray[np.int32]
Float32 = npt.NDArray[np.float32]
Bool = npt.NDArray[np.bool_]


def concatenate(parts: list[npt.NDArray[Any]], dtype: Any) -> npt.NDArray[Any]:
    """The parts end to end as one array of this dtype; of no parts, an empty one."""
    return np.concatenate(parts).astype(dtype) if parts else np.zeros(0, dtype)


def pack_arrays(arrays: dict[str, npt.NDArray[Any]], meta: Any) -> bytes:
    """The arrays as one safetensors body. meta: JSON data, kept in its header."""
    # safetensors writes a non-contiguous array wrongly and says nothing.
    contiguous = {k: np.ascontiguousarray(v) for k, v in arrays.items()}
    return save(contiguous, metadata={"synth": json.dumps(meta)})


def unpack_arrays(body: bytes) -> tuple[dict[str, npt.NDArray[Any]], Any]:
    """The arrays and the description that `pack_arrays` wrote. Raises `ValueError` on any other body."""
    meta = read_description(body[LENGTH_BYTES : LENGTH_BYTES + header_length(body)])
    try:
        return load(body), meta
    except (KeyError, ValueError) as error:
        raise ValueError(f"not a body of ours: {error}") from error
