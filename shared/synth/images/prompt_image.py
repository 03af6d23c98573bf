"""The images of a prompt: each by its blob, with the patches that it becomes, in the order of their tokens.

A prompt's token ids hold an image as a run of the model's image token, one for each merged patch. The ids alone do not
identify the image, so to compare two prompts is to compare their images too.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from synth.errors import UserError


class PromptImage(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """An image that a prompt shows.

    sha256: of its file. size: bytes of it. uri: its blob. height, width: its patches, before they are merged.
    tokens: how many image tokens stand for it.
    """

    sha256: str
    size: int
    uri: str
    height: int
    width: int
    tokens: int


def token_counts(
    ids: npt.NDArray[np.integer], images: Sequence[PromptImage], image_token: int
) -> npt.NDArray[np.int64]:
    """Return how many tokens each of the ids stands for, int64 [T]: a chat template writes one for each image.

    Raises `UserError` if the numbers of images and of image tokens differ: the template omits an image, or text spells
    an image token.
    """
    places = np.flatnonzero(ids == image_token)
    if len(places) != len(images):
        raise UserError(
            f"the chat template shows {len(places)} images, and the messages have {len(images)}",
            expected="a template that shows every image, in any place",
            fix="put images into messages of the user",
            where="messages",
        )
    counts = np.ones(len(ids), np.int64)
    counts[places] = [image.tokens for image in images]
    return counts


def expand_image_tokens(ids: Sequence[int], images: Sequence[PromptImage], image_token: int) -> list[int]:
    """Return the ids with all image tokens of each image. Raises `UserError` as `token_counts` does."""
    rendered = np.asarray(ids, np.int64)
    return np.repeat(rendered, token_counts(rendered, images, image_token)).tolist()
