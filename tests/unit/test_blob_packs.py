"""Small blobs of one folder share files, and each is read and checked by itself."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from synth.blobs import BlobCorrupt, BlobMissing, BlobStore
from synth.blobs import packs as packs_module
from synth.blobs.packs import PackWriter
from synth.errors import Transient

BODIES = [f"body {n}".encode() * (n + 1) for n in range(40)]


def files(store: BlobStore) -> list[Path]:
    assert store.root is not None
    return [path for path in store.root.rglob("*.*") if path.is_file()]


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    return BlobStore.open(f"file:{tmp_path / 'blobs'}")


async def test_blobs_that_arrive_together_are_one_file_and_are_read_one_by_one(store: BlobStore, tmp_path: Path):
    writer = PackWriter(store)
    refs = await asyncio.gather(*(writer.put("jobs/a", body) for body in BODIES))
    assert len(files(store)) == 1
    for ref, body in zip(refs, BODIES, strict=True):
        assert await store.get_bytes(ref) == body
        assert await store.get_range(ref, 2, 5) == body[2:5]
        assert b"".join([piece async for piece in store.stream(ref)]) == body
        assert (await store.fetch(ref, tmp_path / "copy")).read_bytes() == body


async def test_a_pack_holds_blobs_of_one_folder(store: BlobStore):
    writer = PackWriter(store)
    refs = await asyncio.gather(*(writer.put(f"jobs/{n % 2}", body) for n, body in enumerate(BODIES)))
    assert len(files(store)) == 2
    assert [ref.uri.split("/")[3] for ref in refs] == [str(n % 2) for n in range(len(BODIES))]


async def test_a_large_blob_is_a_file_of_its_own(store: BlobStore):
    writer, large = PackWriter(store), b"x" * ((1 << 20) + 1)
    refs = await asyncio.gather(*(writer.put("jobs/a", body) for body in (b"small", large, b"other")))
    assert len(files(store)) == 2
    assert [ref.part is None for ref in refs] == [False, True, False]
    assert [await store.get_bytes(ref) for ref in refs] == [b"small", large, b"other"]


async def test_a_pack_has_a_largest_size(store: BlobStore, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(packs_module, "_LARGEST_PACK", 300)
    writer = PackWriter(store)
    refs = await asyncio.gather(*(writer.put("jobs/a", body) for body in BODIES))
    assert 20 < len(files(store)) < len(BODIES)
    assert [await store.get_bytes(ref) for ref in refs] == BODIES


@pytest.mark.parametrize("change", ["flip", "cut", "empty", "remove"])
async def test_damage_of_a_pack_is_detected_in_each_part_that_it_reaches(store: BlobStore, change: str):
    writer = PackWriter(store)
    refs = await asyncio.gather(*(writer.put("jobs/a", body) for body in (b"first", b"second")))
    (path,) = files(store)
    content = path.read_bytes()
    if change == "remove":
        path.unlink()
    else:
        path.write_bytes({"flip": content[:-1] + b"?", "cut": content[:7], "empty": b""}[change])
    with pytest.raises(BlobMissing if change == "remove" else BlobCorrupt):
        await store.get_bytes(refs[1])
    if change in ("flip", "cut"):
        assert await store.get_bytes(refs[0]) == b"first"


async def test_each_caller_gets_the_error_of_the_store_and_the_next_write_works(
    store: BlobStore, monkeypatch: pytest.MonkeyPatch
):
    writer = PackWriter(store)

    async def full(*_: object, **__: object) -> None:
        raise Transient("the blob store's disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(BlobStore, "put_bytes", full)
        results = await asyncio.gather(*(writer.put("jobs/a", b) for b in BODIES[:3]), return_exceptions=True)
    assert [type(result) for result in results] == [Transient] * 3
    assert await store.get_bytes(await writer.put("jobs/a", b"again")) == b"again"


async def test_a_cancelled_caller_takes_nothing_from_the_others(store: BlobStore):
    writer = PackWriter(store)
    writes = [asyncio.create_task(writer.put("jobs/a", body)) for body in BODIES[:3]]
    await asyncio.sleep(0)
    writes[1].cancel()
    await asyncio.wait(writes)
    assert len(files(store)) == 1
    assert writes[1].cancelled()
    assert await store.get_bytes(writes[0].result()) == BODIES[0]
    assert await store.get_bytes(writes[2].result()) == BODIES[2]


async def test_a_writer_whose_callers_are_all_cancelled_writes_nothing(store: BlobStore):
    writer = PackWriter(store)
    write = asyncio.create_task(writer.put("jobs/a", b"body"))
    await asyncio.sleep(0)
    write.cancel()
    await asyncio.wait([write])
    assert await store.get_bytes(await writer.put("jobs/a", b"next")) == b"next"
    assert len(files(store)) == 1
