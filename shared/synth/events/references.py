"""What an event may point at: blobs and models. Events carry references, never tensors."""

from __future__ import annotations

import msgspec

#: The folder of a checkpoint's tree that holds what is no part of its model: the rest of its training's state.
RESUME_FOLDER = "resume"


class BlobRef(msgspec.Struct, frozen=True, kw_only=True):
    """A blob that was written whole before anybody named it. uri: `blob://<key>` in the cluster's store."""

    uri: str
    size: int
    sha256: str


class LoraShape(msgspec.Struct, frozen=True, kw_only=True):
    """What two adapters must have in common for one to go on from the other."""

    r: int
    alpha: int
    targets: str | list[str]


class ModelRef(msgspec.Struct, frozen=True, kw_only=True):
    """A model that can be loaded: its id, and where its files are.

    kind: "full", or "lora" (then `tree` holds an adapter of this shape and `base` the model below it).
    path: a directory or hub id, for a base model of the registry. tree: the manifest of a model that we made.
    rounded: "nf4" where its linear layers are rounded to 4 bits, an adapter merged before: what QLoRA trains on.
    stand_in: the local model whose weights really run under this id, or ran under its base; None for the real ones.
    """

    id: str
    kind: str = "full"
    path: str | None = None
    tree: BlobRef | None = None
    base: ModelRef | None = None
    lora: LoraShape | None = None
    rounded: str | None = None
    stand_in: str | None = None


def trees_of(model: ModelRef | None) -> list[str]:
    """The manifests of a model's own files and of those of the models that it lies over."""
    return [] if model is None else [*([model.tree.uri] if model.tree else []), *trees_of(model.base)]
