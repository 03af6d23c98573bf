"""The references of events: to blobs and models. Events never carry tensors."""

from __future__ import annotations

import msgspec

#: The folder of a checkpoint's tree for files that are not part of its model: the rest of its training's state.
RESUME_FOLDER = "resume"


class PackedPart(msgspec.Struct, frozen=True, kw_only=True):
    """The place of a blob within another one, a pack. offset: in bytes. pack_sha256: of the whole pack."""

    offset: int
    pack_sha256: str


class BlobRef(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A blob that was completely written before an event named it.

    uri: `blob://<key>` in the cluster's store. size, sha256: of the blob's bytes. part: if the blob at `uri` is a pack,
    the place of these bytes in it.
    """

    uri: str
    size: int
    sha256: str
    part: PackedPart | None = None

    @property
    def stored_sha256(self) -> str:
        """The sha256 of all bytes at `uri`."""
        return self.sha256 if self.part is None else self.part.pack_sha256


class LoraShape(msgspec.Struct, frozen=True, kw_only=True):
    """The properties that two adapters must share for one to continue from the other."""

    r: int
    alpha: int
    targets: str | list[str]


class ModelRef(msgspec.Struct, frozen=True, kw_only=True):
    """A model that can be loaded: its id, and the place of its files.

    kind: "full", or "lora" (then `tree` holds an adapter of this shape and `base` the model below it). path: a
    directory or hub id, for a base model of the registry. tree: the manifest of a model that a job made. rounded: "nf4"
    if its linear layers are rounded to 4 bits, with an adapter merged before: the base of QLoRA. stand_in: the local
    model whose weights really run under this id, or ran under its base; None for the real ones.
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
    """Return the manifests of a model's own files and of all models below it."""
    return [] if model is None else [*([model.tree.uri] if model.tree else []), *trees_of(model.base)]
