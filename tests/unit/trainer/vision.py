"""Images, and sequences and rows that show them to a tiny Qwen3-VL."""

from __future__ import annotations

import hashlib
import io
import os
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from synth.images.prompt_image import PromptImage, expand_image_tokens
from synth.trainer.learner.data.images import ImageLoader
from synth.trainer.learner.data.packing import Sequences
from synth.trajectories import BatchMeta, Branch, RolloutBatch, RolloutMeta

COLOURS = {"red": (220, 30, 30), "green": (30, 200, 60), "blue": (40, 60, 220), "yellow": (230, 220, 40)}
#: Width and height, in pixels.
SIZES = ((64, 64), (96, 32), (32, 128), (32, 32))


def store_image(folder: Path, image: Image.Image) -> str:
    """Write an image as the owner fetches it. Returns the address of its blob."""
    out = io.BytesIO()
    image.save(out, "PNG")
    sha256 = hashlib.sha256(out.getvalue()).hexdigest()
    folder.mkdir(parents=True, exist_ok=True)
    # Two ranks make the same images in one folder.
    partial = folder / f".{sha256}.{os.getpid()}"
    partial.write_bytes(out.getvalue())
    partial.replace(folder / sha256)
    return f"blob://orgs/org_a/images/{sha256}"


def noise(seed: int, size: tuple[int, int] = (64, 64)) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 255, (size[1], size[0], 3), np.uint8)
    return Image.fromarray(pixels)


def square(colour: str, corner: int) -> Image.Image:
    """A square of 28 pixels in one of four corners of a black image of 64 by 64."""
    image = Image.new("RGB", (64, 64))
    x, y = 2 + 32 * (corner % 2), 2 + 32 * (corner // 2)
    ImageDraw.Draw(image).rectangle((x, y, x + 27, y + 27), fill=COLOURS[colour])
    return image


def square_rows(folder: Path, count: int = 32, *, blank: bool = False) -> list[dict[str, Any]]:
    """Squares and the names of their colours. blank: each image is black."""
    rows: list[dict[str, Any]] = []
    for i in range(count):
        colour = list(COLOURS)[i % 4]
        image = Image.new("RGB", (64, 64)) if blank else square(colour, i // 4 % 4)
        rows.append(question("What colour is the square?", store_image(folder, image), answer=colour))
    return rows


def question(text: str, *images: str, answer: str) -> dict[str, Any]:
    """A row of one question with its images in front of it, and the answer."""
    parts = [*({"type": "image", "image": uri} for uri in images), {"type": "text", "text": text}]
    return {"messages": [{"role": "user", "content": parts}, {"role": "assistant", "content": answer}]}


def mixed_branches(loader: ImageLoader, count: int = 10, *, seed: int = 0, version: int = 0) -> list[Branch]:
    """Random sequences: with two images of different sizes, with one, and, each third, with none."""
    rng = np.random.default_rng([7, seed])
    branches: list[Branch] = []
    for i in range(count):
        shown: list[PromptImage] = []
        for k in range(2 - i % 3):
            size = SIZES[int(rng.integers(len(SIZES)))]
            shown.append(loader.describe(store_image(loader.folder, noise(100 * seed + 10 * i + k, size))))
        prompt: list[int] = []
        for _ in shown:
            prompt += [*rng.integers(5, 300, 3).tolist(), loader.image_token, *rng.integers(5, 300, 2).tolist()]
        prompt += rng.integers(5, 300, int(rng.integers(3, 9))).tolist()
        ids = expand_image_tokens(prompt, shown, loader.image_token)
        sampled = int(rng.integers(2, 9))
        mask = np.array([False] * len(ids) + [True] * sampled)
        branches.append(
            Branch(
                tokens=np.asarray([*ids, *rng.integers(5, 300, sampled)], np.int32),
                loss_mask=mask,
                logprobs=np.where(mask, -5 - rng.random(len(mask)), 0).astype(np.float32),
                versions=np.where(mask, version, -1).astype(np.int32),
                calls=np.where(mask, 0, -1).astype(np.int32),
                images=tuple(shown),
                processor=loader.fingerprint if shown else "",
            )
        )
    return branches


def vision_batch(
    loader: ImageLoader, iteration: int, *, count: int = 10, only: list[int] | None = None
) -> RolloutBatch:
    """A batch of `mixed_branches`. only: the sequences with an advantage; all, where not given."""
    branches = mixed_branches(loader, count, seed=iteration, version=iteration - 1)
    rng = np.random.default_rng([8, iteration])
    advantages = [float(rng.normal()) if only is None or i in only else 0.0 for i in range(count)]
    meta = BatchMeta(
        job_id="job_test",
        iteration=iteration,
        temperature=1.0,
        rollouts=[RolloutMeta(rollout_id=f"r{i}", seed=i, group=i // 5, reward=float(i % 2)) for i in range(count)],
        groups_kept=count // 5,
        groups_dropped=0,
    )
    return RolloutBatch.build(branches, advantages, list(range(count)), meta)


def as_sequences(batch: RolloutBatch, loader: ImageLoader) -> Sequences:
    """What is trained of a batch."""
    weights = batch.loss_mask.astype(np.float32)
    return Sequences(batch.tokens, weights, batch.cu_seqlens, batch.masks, batch.images, loader.banned)
