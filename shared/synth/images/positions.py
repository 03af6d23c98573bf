"""Positions of a sequence with images, in the three axes of Qwen3-VL's rotary embedding.

Source: interleaved MRoPE, Qwen3-VL technical report (2025), after Qwen2-VL, §2.1 (arXiv 2409.12191). A text token has
the same number on all axes. An image's tokens have the number of the token before it, plus one, on the axis of time,
and on the axes of height and width that number plus their row and column. The text after it goes on from the largest
number that the image has, plus one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from synth.images.prompt_image import PromptImage

Int64 = npt.NDArray[np.int64]


def mrope_positions(
    tokens: npt.NDArray[np.integer], images: Sequence[PromptImage], *, image_token: int, merge_size: int
) -> tuple[Int64, int]:
    """Return the positions of one sequence, int64 [3, T] (time, height, width), and of the text token after it.

    tokens: int [T], each image as a run of its tokens. merge_size: patches that become one token, on each axis. Raises
    ValueError if the runs do not match the images.
    """
    positions = np.empty((3, len(tokens)), np.int64)
    starts = np.flatnonzero(tokens == image_token)
    end, position, used = 0, 0, 0
    for image in images:
        if used + image.tokens > len(starts):
            raise ValueError(f"the sequence has {len(starts)} image tokens, and its images have more")
        start = int(starts[used])
        text = start - end
        positions[:, end:start] = position + np.arange(text)
        position += text
        rows, columns = image.height // merge_size, image.width // merge_size
        if rows * columns != image.tokens or int(starts[used + image.tokens - 1]) != start + image.tokens - 1:
            raise ValueError(f"an image of {rows}×{columns} tokens does not match the image tokens of the sequence")
        end = start + image.tokens
        positions[0, start:end] = position
        positions[1, start:end] = position + np.repeat(np.arange(rows), columns)
        positions[2, start:end] = position + np.tile(np.arange(columns), rows)
        position += max(rows, columns)
        used += image.tokens
    if used != len(starts):
        raise ValueError(f"the sequence has {len(starts)} image tokens, and its images have {used}")
    positions[:, end:] = position + np.arange(len(tokens) - end)
    return positions, position + len(tokens) - end
