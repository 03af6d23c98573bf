"""A model as files on this machine: a registry directory, a hub download, or a tree of the blob store."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from synth.blobs import BlobStore
from synth.errors import Permanent
from synth.events import ModelRef


@dataclass(frozen=True)
class LocalModel:
    """Directories to load from, never to write to. adapter: over `model`, None for a full model."""

    model: Path
    adapter: Path | None


async def local_model(ref: ModelRef, blobs: BlobStore, cache: Path) -> LocalModel:
    """Have a model's files on this machine. cache: where trees of a remote store and hub downloads go.

    Raises `Permanent` when they cannot be had.
    """
    if ref.kind == "lora":
        if ref.base is None or ref.tree is None:
            raise Permanent(f"{ref.id}: an adapter needs a tree and a base")
        base = await local_model(ref.base, blobs, cache)
        if base.adapter is not None:
            raise Permanent(f"{ref.id}: an adapter over an adapter is not served")
        return LocalModel(base.model, await blobs.fetch_tree(ref.tree, cache / ref.tree.sha256[:16]))
    if ref.tree is not None:
        return LocalModel(await blobs.fetch_tree(ref.tree, cache / ref.tree.sha256[:16]), None)
    if ref.path is None:
        raise Permanent(f"{ref.id}: neither a path nor a tree")
    if (directory := Path(ref.path)).is_dir():
        return LocalModel(directory, None)
    return LocalModel(await asyncio.to_thread(_from_hub, ref.path, cache), None)


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
