"""A blob store whose disk is not mounted: nothing of it counts as lost, and nothing is written below its mount."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from synth.blobs import BlobMissing, BlobStore, StoreAbsent
from synth.events import BlobRef

READS: dict[str, Callable[[BlobStore, BlobRef, Path], Awaitable[object]]] = {
    "whole": lambda store, ref, _: store.get_bytes(ref),
    "a range": lambda store, ref, _: store.get_range(ref, 0, 2),
    "as a file": lambda store, ref, folder: store.fetch(ref, folder / "copy"),
    "in pieces": lambda store, ref, _: store.verify(ref),
    "a tree": lambda store, ref, folder: store.fetch_tree(ref, folder / "tree"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "blobs"


@pytest.fixture
def store(folder: Path) -> BlobStore:
    return BlobStore.open(f"file:{folder}")


def unmount(folder: Path) -> Path:
    """Take the disk away; returns where it is."""
    away = folder.with_name("away")
    folder.rename(away)
    folder.mkdir()
    return away


@pytest.mark.parametrize("read", READS.values(), ids=READS)
async def test_a_blob_of_an_absent_store_is_not_missing(store: BlobStore, folder: Path, read, tmp_path: Path):
    ref = await store.put_bytes("jobs/a", b"body")
    away = unmount(folder)
    # Also in a process that starts meanwhile.
    for reader in (store, BlobStore.open(f"file:{folder}")):
        with pytest.raises(StoreAbsent, match="is its disk mounted"):
            await read(reader, ref, tmp_path)
    folder.rmdir()
    away.rename(folder)
    assert await store.get_bytes(ref) == b"body"
    await store.delete([ref.uri])
    with pytest.raises(BlobMissing):
        await read(store, ref, tmp_path)


async def test_nothing_is_written_deleted_or_listed_where_the_disk_was(store: BlobStore, folder: Path, tmp_path: Path):
    ref = await store.put_bytes("jobs/a", b"body")
    (tmp_path / "file").write_bytes(b"x")
    away = unmount(folder)
    for change in (
        lambda: store.put_bytes("jobs/b", b"x"),
        lambda: store.put_file("jobs/b", tmp_path / "file"),
        lambda: store.delete([ref.uri]),
        lambda: store.uris_below("jobs"),
        lambda: _all(store),
    ):
        with pytest.raises(StoreAbsent):
            await change()
    assert [*folder.iterdir()] == []
    assert (away / "jobs" / "a").read_bytes() == b"body"


async def test_a_new_store_is_written_and_listed_as_it_is(store: BlobStore):
    assert await _all(store) == []
    assert await store.uris_below("jobs") == []
    await store.delete(["blob://jobs/a"])
    ref = await store.put_bytes("jobs/a", b"body")
    assert await store.get_bytes(ref) == b"body"
    assert [key for key, *_ in await _all(store)] == ["jobs/a"]


async def _all(store: BlobStore) -> list[tuple[str, int, object]]:
    return [entry async for entry in store.entries()]


async def test_a_store_with_an_id_is_absent_without_it_also_for_a_process_that_starts_then(folder: Path):
    new = BlobStore.open(f"file:{folder}")
    await new.identify("one")
    store = replace(BlobStore.open(f"file:{folder}"), id="one")
    ref = await store.put_bytes("jobs/a", b"body")
    away = unmount(folder)
    late = replace(BlobStore.open(f"file:{folder}"), id="one")
    for change in (
        lambda: late.put_bytes("jobs/b", b"x"),
        lambda: late.get_bytes(ref),
        lambda: late.uris_below("jobs/a"),
        lambda: late.delete([ref.uri]),
        lambda: _all(late),
    ):
        with pytest.raises(StoreAbsent, match="is its disk mounted"):
            await change()
    assert [*folder.iterdir()] == []
    folder.rmdir()
    away.rename(folder)
    assert await late.get_bytes(ref) == b"body"
    assert [key for key, *_ in await _all(late)] == ["jobs/a"], "its id is no blob"


async def test_another_clusters_store_takes_nothing(folder: Path):
    await BlobStore.open(f"file:{folder}").identify("two")
    store = replace(BlobStore.open(f"file:{folder}"), id="one")
    with pytest.raises(StoreAbsent, match="is the store two, of another cluster"):
        await store.put_bytes("jobs/b", b"x")
