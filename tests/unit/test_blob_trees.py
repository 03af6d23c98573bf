"""Trees in the blob store: a directory comes back as it was, whatever its files are called."""

from __future__ import annotations

from pathlib import Path

import pytest
from obstore.store import MemoryStore

from synth.blobs import BlobCorrupt, BlobStore

FILES = {"manifest.json": b'{"mine": true}', "weights.safetensors": b"x" * 1000, "sub/config.json": b"{}"}


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    return BlobStore.open(f"file:{tmp_path / 'blobs'}")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    for name, body in FILES.items():
        path = tmp_path / "made" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)
    return tmp_path / "made"


def contents(directory: Path) -> dict[str, bytes]:
    return {p.relative_to(directory).as_posix(): p.read_bytes() for p in directory.rglob("*") if p.is_file()}


@pytest.mark.parametrize("move", [False, True])
async def test_a_tree_with_a_manifest_of_its_own_comes_back_unchanged(
    store: BlobStore, directory: Path, tmp_path: Path, move: bool
):
    tree, manifest = await store.put_tree("jobs/job_1/checkpoint-3", directory, move=move)
    assert contents(await store.fetch_tree(tree, tmp_path / "out")) == FILES
    assert manifest.size == sum(map(len, FILES.values()))
    assert directory.exists() is not move


async def test_a_folder_goes_with_its_last_blob(store: BlobStore, directory: Path, tmp_path: Path):
    tree, manifest = await store.put_tree("orgs/o/jobs/job_1/checkpoint-3", directory)
    other = await store.put_bytes("orgs/o/files/file_1", b"x")
    uris = [ref.uri for ref in manifest.files.values()]
    await store.delete(uris[1:])
    assert (tmp_path / "blobs/orgs/o/jobs/job_1/checkpoint-3").is_dir()
    await store.delete([uris[0], tree.uri, tree.uri])
    assert [p.name for p in (tmp_path / "blobs/orgs/o").iterdir()] == ["files"]
    assert await store.get_bytes(other) == b"x"


async def test_a_folder_that_is_removed_while_a_blob_is_written_is_made_again(
    store: BlobStore, monkeypatch: pytest.MonkeyPatch
):
    """Another process deletes the folder's last blob between the making of the folder and the rename."""
    rename, removed = Path.replace, list[Path]()

    def replace(path: Path, target: Path) -> Path:
        if len(removed) < 3:
            target.parent.rmdir()
            removed.append(target.parent)
        return rename(path, target)

    monkeypatch.setattr(Path, "replace", replace)
    ref = await store.put_bytes("orgs/o/jobs/job_1/a", b"x")
    assert len(removed) == 3
    assert await store.get_bytes(ref) == b"x"


async def test_a_tree_made_from_a_fetched_tree_can_be_fetched(store: BlobStore, directory: Path, tmp_path: Path):
    first, _ = await store.put_tree("jobs/job_1/model", directory)
    second, _ = await store.put_tree("jobs/job_2/model", await store.fetch_tree(first, tmp_path / "one"))
    assert contents(await store.fetch_tree(second, tmp_path / "two")) == FILES


async def test_a_tree_with_a_changed_file_is_not_handed_out(store: BlobStore, directory: Path, tmp_path: Path):
    tree, manifest = await store.put_tree("t", directory)
    assert store.root is not None
    (store.root / manifest.files["manifest.json"].uri.removeprefix("blob://")).write_bytes(b"other")
    with pytest.raises(BlobCorrupt, match=r"manifest\.json"):
        await store.fetch_tree(tree, tmp_path / "out")


async def test_a_blob_that_was_fetched_from_afar_is_not_written_again_under_who_has_it_open(tmp_path: Path):
    remote = BlobStore(MemoryStore(), None)
    ref = await remote.put_bytes("jobs/job_1/w", b"w" * 1000)
    path = await remote.fetch(ref, tmp_path / "w")
    inode = path.stat().st_ino
    assert (await remote.fetch(ref, path)).stat().st_ino == inode
    path.write_bytes(b"not what was fetched")
    assert (await remote.fetch(ref, path)).read_bytes() == b"w" * 1000
    assert [p.name for p in tmp_path.iterdir()] == ["w"]


async def test_a_blob_is_written_in_the_first_folder_of_its_key_which_stays(store: BlobStore, tmp_path: Path):
    """These folders may be mounts of their own: a rename ends at a mount, and nobody removes one."""
    ref = await store.put_bytes("jobs/job_1/log", b"x")
    incoming = tmp_path / "blobs/jobs/.incoming"
    assert list(incoming.iterdir()) == []
    assert [p.name for p in (tmp_path / "blobs").iterdir()] == ["jobs"]
    (incoming / "half").write_bytes(b"x")
    assert [key async for key, _, _ in store.entries()] == ["jobs/job_1/log"]
    (incoming / "half").unlink()
    await store.delete([ref.uri])
    assert incoming.is_dir()
    assert store.local_folders() == [tmp_path / "blobs", tmp_path / "blobs/jobs"]


async def test_a_damaged_blob_is_not_read_to_its_end(tmp_path: Path):
    blobs = BlobStore.open(f"file:{tmp_path}")
    ref = await blobs.put_bytes("orgs/a", b"whole")
    (tmp_path / "orgs" / "a").write_bytes(b"whale")
    with pytest.raises(BlobCorrupt):
        assert [piece async for piece in blobs.stream(ref)] == []
