"""The images of sequences, as patches: read from a folder in which each file is named by its sha256."""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from synth.errors import SynthError, UserError
from synth.images.format import NotAnImage
from synth.images.processor import ImageProcessor
from synth.images.prompt_image import PromptImage
from synth.images.qwen3_vl import ImagePatches, media_tokens
from synth.trainer.errors import TrainingFailed
from synth.trainer.row_images import digest_of

#: Patches that are kept: an image is read two or three times in a step, once for each forward that it is in.
CACHE_BYTES = 1 << 29
#: The folder of the kept images, within the folder of all images.
_KEPT = "kept"


class ImageLoader:
    """Loads the images that a vision model is shown.

    image_token: the id that stands for a merged patch. banned: the ids of media, which are never sampled.
    """

    def __init__(
        self, folder: Path, processor: ImageProcessor, model_config: Any, *, cache_bytes: int = CACHE_BYTES
    ) -> None:
        """folder: of the images' files. model_config: the Hugging Face config of the model."""
        self.folder = folder
        self.image_token = int(model_config.image_token_id)
        self.banned = media_tokens(model_config)
        self._processor = processor
        self._described: dict[str, PromptImage] = {}
        self._pixels: OrderedDict[PromptImage, npt.NDArray[np.float32]] = OrderedDict()
        self._free_bytes = cache_bytes

    @classmethod
    def load(cls, model_dir: Path, folder: Path) -> ImageLoader:
        """Return the loader of a model folder's own processor. Raises `TrainingFailed` (bad_model)."""
        from transformers.models.auto.configuration_auto import AutoConfig

        try:
            config = AutoConfig.from_pretrained(str(model_dir), local_files_only=True)
            return cls(folder, ImageProcessor.load(model_dir), config)
        except (OSError, ValueError, SynthError) as error:
            raise TrainingFailed("bad_model", f"{model_dir.name} cannot be shown images: {error}") from error

    @property
    def fingerprint(self) -> str:
        """`ImageProcessor.fingerprint`."""
        return self._processor.fingerprint

    @property
    def merge_size(self) -> int:
        """Patches that become one token, on each axis."""
        return self._processor.merge_size

    def describe(self, uri: str) -> PromptImage:
        """Describe the image of a blob for a prompt. Raises `TrainingFailed` (bad_image)."""
        sha256 = digest_of(uri)
        if sha256 not in self._described:
            body = self._read(sha256)
            try:
                self._described[sha256] = self._processor.describe(body, sha256=sha256, uri=uri)
            except NotAnImage as error:
                raise TrainingFailed("bad_image", f"{uri}: {error}") from error
        return self._described[sha256]

    def patches(self, images: Sequence[PromptImage], device: torch.device | str) -> ImagePatches | None:
        """Return the patches of these images; None without any. Raises `TrainingFailed` (bad_image)."""
        return ImagePatches.of([self._patches_of(image) for image in images], images, device)

    def kept(self, image: PromptImage) -> Path:
        """Return the file of an image that is kept."""
        return self.folder / _KEPT / image.sha256

    def keep(self, images: Iterable[PromptImage]) -> None:
        """Keep only the files of these images after the files of a trained batch are removed."""
        kept = self.folder / _KEPT
        kept.mkdir(parents=True, exist_ok=True)
        names = {image.sha256 for image in images}
        for sha256 in names - {file.name for file in kept.iterdir()}:
            try:
                os.link(self.folder / sha256, kept / sha256)
            except FileExistsError:
                pass  # another rank did the same
            except OSError:  # a file system without hard links
                _copy(self.folder / sha256, kept / sha256)
        for file in kept.iterdir():
            if file.name not in names:
                file.unlink(missing_ok=True)

    def add(self, file: Path) -> None:
        """Take a file, named by its sha256, into the folder; one that is there already stays."""
        target = self.folder / file.name
        if target.exists():
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        _copy(file, target)

    def _patches_of(self, image: PromptImage) -> npt.NDArray[np.float32]:
        if image in self._pixels:
            self._pixels.move_to_end(image)
            return self._pixels[image]
        body = self._read(image.sha256)
        try:
            pixels = self._processor.file_patches(body, image)
        except (NotAnImage, UserError) as error:
            raise TrainingFailed("bad_image", f"{image.uri}: {error}") from error
        self._pixels[image] = pixels
        self._free_bytes -= pixels.nbytes
        while self._free_bytes < 0 and len(self._pixels) > 1:
            _, oldest = self._pixels.popitem(last=False)
            self._free_bytes += oldest.nbytes
        return pixels

    def _read(self, sha256: str) -> bytes:
        path = self.folder / sha256
        try:
            body = (path if path.exists() else self.folder / _KEPT / sha256).read_bytes()
        except OSError as error:
            raise TrainingFailed(
                "bad_image", f"the image {sha256} is not in {self.folder}: {error.strerror}; expected its file there"
            ) from error
        digest = hashlib.sha256(body).hexdigest()
        if digest != sha256:
            raise TrainingFailed(
                "bad_image",
                f"{path} is not the image that it is named for: its {len(body)} bytes have sha256 {digest}; expected "
                f"{sha256}",
            )
        return body


def _copy(file: Path, target: Path) -> None:
    """Copy a file, which is whole as soon as it is there. Ranks may copy the same one at the same time."""
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    partial.write_bytes(file.read_bytes())
    partial.replace(target)
