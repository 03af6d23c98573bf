"""Compute the patches that Qwen3-VL reads from the file of an image: the model's own settings, and one way to compute.

Trainer and engines must see the same pixels, so all of them use transformers' processor on Pillow, never the one on
torchvision, which resizes differently. Two processes agree if their `fingerprint` is equal: it is a digest of the
patches of an image, so it also changes with the release of Pillow.
"""

from __future__ import annotations

import functools
import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from synth.errors import Permanent, UserError
from synth.images.decoding import check_aspect, open_image
from synth.images.format import read_image_format
from synth.images.prompt_image import PromptImage

SETTINGS_FILE = "preprocessor_config.json"


@dataclass(frozen=True)
class ImageProcessor:
    """The image processor of one model. settings: of its `preprocessor_config.json`."""

    settings: dict[str, Any]
    _library: Any = field(repr=False, compare=False)

    @classmethod
    def load(cls, model_dir: Path) -> ImageProcessor:
        """Read a model folder's processor. Raises `Permanent` if it has none, or one of another kind."""
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

        try:
            settings: Any = json.loads((model_dir / SETTINGS_FILE).read_bytes())
        except (OSError, ValueError) as error:
            raise Permanent(f"{model_dir.name!r} has no {SETTINGS_FILE} that can be read: {error}") from error
        kind = str(cast(dict[str, Any], settings).get("image_processor_type"))
        if not kind.startswith("Qwen2VLImageProcessor"):
            raise Permanent(
                f"{model_dir.name!r} has an image processor of type {kind}; expected Qwen2VLImageProcessor, as "
                "Qwen3-VL's models have it"
            )
        library: Any = Qwen2VLImageProcessorPil
        return cls(settings, library.from_dict(settings))

    @property
    def merge_size(self) -> int:
        """Patches that become one token, on each axis."""
        return self._library.merge_size

    @property
    def patch_values(self) -> int:
        """Numbers in a patch: of its colours, its frames and its pixels."""
        return 3 * self._library.temporal_patch_size * self._library.patch_size**2

    @functools.cached_property
    def fingerprint(self) -> str:
        """Equal in two processes that make the same patches of an image."""
        side = 3 * self._library.patch_size * self.merge_size + 5  # so that it is resized
        ramp = np.arange(side * side * 3, dtype=np.uint32) * 2654435761 >> 13
        patches, grid = self._patches(ramp.astype(np.uint8).reshape(side, side, 3))
        return hashlib.sha256(np.asarray(grid).tobytes() + patches.tobytes()).hexdigest()[:16]

    def describe(self, body: bytes, *, sha256: str, uri: str) -> PromptImage:
        """Return the entry of an image in a prompt. Raises `NotAnImage`."""
        header = read_image_format(body)
        height, width = self.grid(header.width, header.height)
        return PromptImage(
            sha256=sha256,
            size=len(body),
            uri=uri,
            height=height,
            width=width,
            tokens=height * width // self.merge_size**2,
        )

    def grid(self, width: int, height: int) -> tuple[int, int]:
        """Return the patches, (rows, columns), of an image of this size in pixels. Raises `NotAnImage`."""
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

        check_aspect(width, height)
        size, patch = self._library.size, self._library.patch_size
        resized = smart_resize(height, width, patch * self.merge_size, size["shortest_edge"], size["longest_edge"])
        return resized[0] // patch, resized[1] // patch

    def file_patches(self, body: bytes, image: PromptImage) -> npt.NDArray[np.float32]:
        """Decode an image's file and return its patches, as `patches`. Raises `NotAnImage` too.

        The file is decoded in this process, so the process must hold no key (`synth.images.decoder`).
        """
        return self.patches(np.asarray(open_image(body)), image)

    def patches(self, pixels: npt.NDArray[np.uint8], image: PromptImage) -> npt.NDArray[np.float32]:
        """Return the patches of an image, float32 [height · width, values of a patch], in the order of the tokens.

        pixels: [rows, columns, 3]. Raises `UserError` if the patches are not as many as the prompt was made for.
        """
        patches, grid = self._patches(pixels)
        if grid != (image.height, image.width):
            raise UserError(
                f"the image {image.sha256[:12]} becomes {grid[0]}×{grid[1]} patches, and its prompt has "
                f"{image.height}×{image.width}",
                expected="one image processor in the trainer and the engines",
                fix=f"compare {SETTINGS_FILE} of the models that they load",
                where="vision_processor_id",
            )
        return patches

    def _patches(self, pixels: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.float32], tuple[int, int]]:
        made: Any = self._library.preprocess([pixels], return_tensors="np", input_data_format="channels_last")
        _, rows, columns = made["image_grid_thw"][0].tolist()
        return np.ascontiguousarray(made["pixel_values"], np.float32), (rows, columns)


def is_vision_folder(model_dir: Path) -> bool:
    """Return whether a folder holds a vision model."""
    return (model_dir / SETTINGS_FILE).is_file()
