"""The images of chat rows: which are shown, and the tokens that they become."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from synth.chat.messages import Message
from synth.images.prompt_image import PromptImage, token_counts
from synth.trainer.learner.data.images import ImageLoader
from synth.trainer.row_images import shown_blobs

Int32 = npt.NDArray[np.int32]
Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class SftImages:
    """The loader of a dataset's images. max_per_message: how many of a message's first images are shown."""

    loader: ImageLoader
    max_per_message: int

    def shown_by(self, messages: Sequence[Message]) -> tuple[PromptImage, ...]:
        """Return the images of these messages. Raises `UserError`, and `TrainingFailed` (bad_image)."""
        return tuple(self.loader.describe(uri) for uri in shown_blobs(messages, most=self.max_per_message))

    def expand(self, ids: Int32, weights: Float32, images: tuple[PromptImage, ...]) -> tuple[Int32, Float32]:
        """Expand the one image token that the template writes per image to as many as the image has.

        Raises `UserError` if the template does not show them all.
        """
        counts = token_counts(ids, images, self.loader.image_token)
        return np.repeat(ids, counts), np.repeat(weights, counts)

    def whole_within(
        self, length: int, ids: Int32, images: tuple[PromptImage, ...]
    ) -> tuple[int, tuple[PromptImage, ...]]:
        """Return the most tokens, up to `length`, that hold no part of an image, and the images that they show."""
        places = np.flatnonzero(ids == self.loader.image_token)
        used = 0
        for k, image in enumerate(images):
            start = int(places[used])
            if start + image.tokens > length:
                return min(length, start), images[:k]
            used += image.tokens
        return length, images
