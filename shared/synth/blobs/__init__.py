"""The blob store: datasets, batches, weights and checkpoints, by reference."""

from __future__ import annotations

from synth.blobs.store import BlobCorrupt, BlobMissing, BlobStore, Manifest, StoreAbsent, blob_key

__all__ = ["BlobCorrupt", "BlobMissing", "BlobStore", "Manifest", "StoreAbsent", "blob_key"]
