"""The images of a dataset or a batch come to a folder, each once, or the job ends and says why."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
from obstore.store import MemoryStore

from synth.blobs import BlobStore
from synth.trainer.learner.data.images import ImageLoader
from synth.trainer.owner.errors import JobFailure
from synth.trainer.owner.images import ImageFetcher
from synth.trainer.row_images import digest_of
from tests.unit.trainer.sft_rows import addition_rows, write_rows
from tests.unit.trainer.vision import noise, question, store_image, vision_batch


@pytest.fixture(params=["local", "remote"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> BlobStore:
    return BlobStore.open(f"file:{tmp_path / 'blobs'}") if request.param == "local" else BlobStore(MemoryStore(), None)


@pytest.fixture
def fetcher(blobs: BlobStore, tmp_path: Path) -> ImageFetcher:
    return ImageFetcher(blobs, "org_a", tmp_path / "images", 2)


@pytest.fixture
def upload(blobs: BlobStore) -> Callable:
    async def upload_all(folder: Path, *uris: str) -> None:
        for uri in uris:
            await blobs.put_bytes(uri.removeprefix("blob://"), (folder / digest_of(uri)).read_bytes())

    return upload_all


def names(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir()}


async def test_the_images_of_a_dataset_are_fetched_as_they_are_shown(
    fetcher: ImageFetcher, upload: Callable, tmp_path: Path
) -> None:
    made = tmp_path / "made"
    uris = [store_image(made, noise(k)) for k in range(5)]
    await upload(made, *uris[:4])
    rows = [question("What?", *uris[:3], answer="a"), *addition_rows(2), question("And?", uris[1], uris[3], answer="b")]
    dataset = write_rows(tmp_path / "d.jsonl", rows)
    with dataset.open("a") as file:
        file.write('{"no row": "of images"}\n')
    await fetcher.fetch_dataset(dataset, most=1)
    assert names(fetcher.folder) == {digest_of(uri) for uri in uris[:2]}
    await fetcher.fetch_dataset(dataset, most=3)
    assert names(fetcher.folder) == {digest_of(uri) for uri in uris[:4]}
    for uri in uris[:4]:
        assert (fetcher.folder / digest_of(uri)).read_bytes() == (made / digest_of(uri)).read_bytes()


async def test_the_images_of_a_batch_are_fetched_once(
    fetcher: ImageFetcher, blobs: BlobStore, upload: Callable, loader: ImageLoader, tmp_path: Path
) -> None:
    batch = vision_batch(loader, 1)
    uris = {image.uri for images in batch.images for image in images}
    await upload(loader.folder, *uris)
    (tmp_path / "batch").write_bytes(batch.to_bytes())
    await fetcher.fetch_batch(tmp_path / "batch")
    assert names(fetcher.folder) == {digest_of(uri) for uri in uris}
    await blobs.delete(list(uris))
    await fetcher.fetch_batch(tmp_path / "batch")
    text = vision_batch(loader, 2)
    text = dataclasses.replace(text, images=tuple(() for _ in text.images))
    (tmp_path / "batch").write_bytes(text.to_bytes())
    (fetcher.folder / "kept").mkdir()
    await fetcher.fetch_batch(tmp_path / "batch")
    assert names(fetcher.folder) == {"kept"}


async def test_images_that_cannot_be_had_end_the_job(
    fetcher: ImageFetcher, blobs: BlobStore, upload: Callable, loader: ImageLoader, tmp_path: Path
) -> None:
    batch = vision_batch(loader, 1)
    gone, *others = sorted({image.uri for images in batch.images for image in images})
    await upload(loader.folder, *others)
    (tmp_path / "batch").write_bytes(batch.to_bytes())
    with pytest.raises(JobFailure, match=f"{digest_of(gone)} is not in the blob store") as failed:
        await fetcher.fetch_batch(tmp_path / "batch")
    assert failed.value.code == "bad_image"
    await blobs.put_bytes(gone.removeprefix("blob://"), b"another")
    with pytest.raises(JobFailure, match="sha256 differs"):
        await fetcher.fetch_batch(tmp_path / "batch")
    assert names(fetcher.folder) <= {digest_of(uri) for uri in others}
    with pytest.raises(JobFailure, match="no blob of this organisation"):
        await dataclasses.replace(fetcher, org="org_b").fetch_batch(tmp_path / "batch")


async def test_an_image_that_was_never_stored_names_its_row(fetcher: ImageFetcher, tmp_path: Path) -> None:
    rows = [*addition_rows(1), question("What?", "https://example.com/a.png", answer="a")]
    with pytest.raises(JobFailure, match=r"row 2: .*example\.com"):
        await fetcher.fetch_dataset(write_rows(tmp_path / "d.jsonl", rows), most=1)


async def test_a_store_with_a_name_that_leaves_its_folder_is_not_read(fetcher: ImageFetcher, tmp_path: Path) -> None:
    uri = f"blob://orgs/org_a/../org_b/images/{'0' * 64}"
    dataset = write_rows(tmp_path / "d.jsonl", [question("What?", uri, answer="a")])
    with pytest.raises(JobFailure, match="no blob of this organisation"):
        await fetcher.fetch_dataset(dataset, most=1)
