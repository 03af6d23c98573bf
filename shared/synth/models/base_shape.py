"""The shape of a base by its id: from its folder, or from its hosted id."""

from __future__ import annotations

from pathlib import Path

from synth.errors import UserError
from synth.models.config_shape import read_shape
from synth.models.hosted_shapes import known_shape
from synth.models.registry import Registry
from synth.models.shape import ModelShape


def base_shape(registry: Registry, base: str) -> ModelShape | None:
    """Return the shape of a base, or of the local model that stands in for it; None if its size is unknown."""
    try:
        path = registry.find(base).path
    except UserError:
        return None
    return known_shape(base) if path is None else read_shape(Path(path))
