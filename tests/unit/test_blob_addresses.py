"""No address of a blob leads out of the store, whoever names it."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
import pytest

from synth.blobs import BlobCorrupt, BlobMissing, BlobStore, Manifest
from synth.events import BlobRef

SECRET = b"not for everybody"


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    (tmp_path / "secret").write_bytes(SECRET)
    store = BlobStore.open(f"file:{tmp_path / 'blobs'}")
    (tmp_path / "blobs" / "jobs").mkdir()
    return store


@pytest.fixture
def outside(tmp_path: Path) -> list[str]:
    """Addresses of the file beside the store."""
    return [
        "blob://../secret",
        "blob://jobs/../../secret",
        f"blob://{tmp_path}/secret",
        "blob://../secret\0",
        "blob://",
    ]


async def test_an_address_that_leads_out_of_the_store_is_no_blob(store: BlobStore, outside: list[str], tmp_path: Path):
    for uri in outside:
        ref = BlobRef(uri=uri, size=len(SECRET), sha256=hashlib.sha256(SECRET).hexdigest())
        with pytest.raises(BlobMissing):
            await store.get_bytes(ref)
        with pytest.raises(BlobMissing):
            await store.get_range(ref, 0, 3)
        with pytest.raises(BlobMissing):
            await store.fetch(ref, tmp_path / "fetched")
        with pytest.raises(BlobMissing):
            async for _ in store.stream(ref):
                pass
        with pytest.raises(BlobMissing):
            await store.written_at(uri)
        with pytest.raises(BlobMissing):
            await store.put_bytes(uri.removeprefix("blob://"), b"x")
        with pytest.raises(BlobMissing):
            await store.put_file(uri.removeprefix("blob://"), tmp_path / "secret")
    # What cannot be there hinders no deletion of others.
    await store.put_bytes("jobs/a", b"a")
    await store.delete([*outside, "blob://jobs/a"])
    assert await store.find_bytes("jobs/a") is None
    assert (tmp_path / "secret").read_bytes() == SECRET


@pytest.mark.parametrize("name", ["../weights", "/etc/weights", "a/../../weights", ""])
async def test_a_tree_has_no_file_outside_its_folder(store: BlobStore, name: str):
    inside = await store.put_bytes("jobs/a/weights", b"w")
    tree = await store.put_bytes("jobs/a.manifest.json", msgspec.json.encode(Manifest(files={name: inside})))
    with pytest.raises(BlobCorrupt, match="outside its folder"):
        await store.manifest(tree)
