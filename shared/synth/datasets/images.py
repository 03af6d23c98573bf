"""Datasets with images, and the models that see none."""

from __future__ import annotations

from synth.errors import Problem


def images_refused(name: str, model: str, *, where: str) -> Problem:
    """The problem of a dataset that shows images to a text model. name: the file's."""
    return Problem(
        what=f"{name!r} shows images, and {model} sees none",
        expected="a file of text, or a vision model",
        fix="choose a Qwen3-VL model, or upload the conversations without their images",
        where=where,
    )
