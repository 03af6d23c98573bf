"""A model as files on this machine: a registry directory, a hub download, or a tree of the blob store."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass
from pathlib import Path

import msgspec

from synth.blobs import BlobMissing, BlobStore
from synth.errors import Permanent
from synth.events import RESUME_FOLDER, BlobRef, LoraShape, ModelRef
from synth.methods.base import continues


@dataclass(frozen=True)
class LocalModel:
    """Directories to load from, never to write to. adapter: over `model`, None for a full model."""

    model: Path
    adapter: Path | None


async def training_source(
    source: ModelRef, lora: LoraShape | None, blobs: BlobStore, cache: Path, *, hub: bool
) -> LocalModel:
    """Return a job's source as trainer and inference load it: an adapter that is not continued is merged first."""
    local = await local_model(source, blobs, cache, hub=hub)
    if local.adapter is None or continues(source, lora):
        return local
    return LocalModel(await _merged(source, local, cache), None)


def adapter_base(source: ModelRef, lora: LoraShape | None) -> ModelRef:
    """Return the model below an adapter of this shape that is trained from the source."""
    return source.base if continues(source, lora) and source.base is not None else source


async def local_model(ref: ModelRef, blobs: BlobStore, cache: Path, *, hub: bool) -> LocalModel:
    """Bring a model's files to this machine.

    cache: for trees of a remote store, hub downloads and models that are built from them. hub: whether the operator
    allows downloads from the model hub; a path in an event does not. Raises `Permanent` when they are not available.
    """
    if ref.rounded is not None:
        plain = msgspec.structs.replace(ref, rounded=None)
        local = await local_model(plain, blobs, cache, hub=hub)
        whole = local.model if local.adapter is None else await _merged(plain, local, cache)
        return LocalModel(await _rounded(ref.id, whole, cache), None)
    if ref.kind == "lora":
        if ref.base is None or ref.tree is None:
            raise Permanent(f"{ref.id}: an adapter needs a tree and a base")
        below = await local_model(ref.base, blobs, cache, hub=hub)
        base = below.model if below.adapter is None else await _merged(ref.base, below, cache)
        return LocalModel(base, await _tree(ref.id, ref.tree, blobs, cache))
    if ref.tree is not None:
        return LocalModel(await _tree(ref.id, ref.tree, blobs, cache), None)
    if ref.path is None:
        raise Permanent(f"{ref.id}: neither a path nor a tree")
    if (directory := Path(ref.path)).is_dir():
        return LocalModel(directory, None)
    if directory.is_absolute():
        raise Permanent(f"{ref.id}: its directory {directory} is gone")
    if not hub:
        raise Permanent(f"{ref.id}: {ref.path!r} is on the model hub, which SYNTH_MODEL_HUB switches off")
    return LocalModel(await asyncio.to_thread(_from_hub, ref.path, cache), None)


async def _tree(id: str, tree: BlobRef, blobs: BlobStore, cache: Path) -> Path:
    try:
        return await blobs.fetch_tree(tree, cache / tree.sha256[:16], without=RESUME_FOLDER)
    except BlobMissing as error:
        # A checkpoint expires while its job continues.
        raise BlobMissing(f"the files of {id} are gone: {error}; `synthctl models ls` lists the models") from error


async def _merged(ref: ModelRef, found: LocalModel, cache: Path) -> Path:
    # The merge is exact float32 arithmetic: every machine writes the same bytes.
    from synth.weights.lora_merge import WeightsError, write_merged_model

    assert found.adapter is not None
    assert ref.tree is not None
    target = cache / f"merged-{ref.tree.sha256[:16]}"
    try:
        await asyncio.to_thread(write_merged_model, found.model, found.adapter, target)
    except WeightsError as error:
        raise Permanent(f"{ref.id} cannot be merged into its base: {error}") from error
    return target


async def _rounded(id: str, whole: Path, cache: Path) -> Path:
    # Like the merge, the rounding writes the same bytes on every machine.
    from synth.weights.nf4 import WeightsError, write_rounded_model

    target = cache / f"nf4-{_stamp(whole)}"
    try:
        await asyncio.to_thread(write_rounded_model, whole, target)
    except WeightsError as error:
        raise Permanent(f"{id} cannot be rounded to 4 bits: {error}") from error
    return target


def _stamp(folder: Path) -> str:
    """Return a name for a folder's contents without reading them; after files are replaced, it is another one."""
    files = sorted((f.name, f.stat().st_size, f.stat().st_mtime_ns) for f in folder.iterdir() if f.is_file())
    return hashlib.sha256(repr((str(folder.resolve()), files)).encode()).hexdigest()[:16]


def _from_hub(hub_id: str, cache: Path) -> Path:
    from huggingface_hub import snapshot_download  # pyright: ignore[reportUnknownVariableType]
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(hub_id, cache_dir=cache / "hub"))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise Permanent(
            f"{hub_id} is neither a directory of models_dir nor to be had from the model hub ({error}); "
            f"put its files into models_dir/{hub_id}"
        ) from error
