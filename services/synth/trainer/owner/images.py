"""Brings the images that a dataset or a batch names to the learner: each a file of a folder, named by its sha256."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from synth.blobs import BlobCorrupt, BlobMissing, BlobStore, blob_key
from synth.chat.messages import TrainingMessage, TrainingRow
from synth.errors import UserError
from synth.events import BlobRef
from synth.trainer.owner.errors import JobFailure
from synth.trainer.row_images import digest_of, shown_blobs
from synth.trajectories import read_batch_images


class _ShownRow(TrainingRow, frozen=True, gc=False, kw_only=True):
    """A conversation, or a preference pair."""

    chosen: tuple[TrainingMessage, ...] = ()
    rejected: tuple[TrainingMessage, ...] = ()


_rows = msgspec.json.Decoder(_ShownRow)


@dataclass(frozen=True)
class ImageFetcher:
    """Fetches the images of an organisation's job into a folder. at_once: how many at one time."""

    blobs: BlobStore
    org: str
    folder: Path
    at_once: int

    async def fetch_dataset(self, dataset: Path, *, most: int) -> None:
        """Fetch the images that the rows of a file show, at most `most` per message.

        Raises `JobFailure` (bad_dataset, bad_image).
        """
        await self._fetch(await asyncio.to_thread(dataset_images, dataset, most=most))

    async def fetch_batch(self, batch: Path) -> None:
        """Fetch the images of a rollout batch, and remove those of earlier batches. Raises `JobFailure` (bad_image)."""
        shown = await asyncio.to_thread(read_batch_images, batch)
        expected = {image.sha256 for image in shown}
        if self.folder.is_dir():
            for file in self.folder.iterdir():
                # The images that the learner keeps are in a folder of their own.
                if file.is_file() and file.name not in expected:
                    file.unlink()
        await self._fetch(image.uri for image in shown)

    async def _fetch(self, uris: Iterable[str]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        places = asyncio.Semaphore(self.at_once)

        async def fetch(uri: str) -> None:
            async with places:
                await self._fetch_one(uri)

        missing = [uri for uri in dict.fromkeys(uris) if not (self.folder / digest_of(uri)).exists()]
        fetching = [asyncio.ensure_future(fetch(uri)) for uri in missing]
        try:
            await asyncio.gather(*fetching)
        finally:
            for one in fetching:
                one.cancel()
            await asyncio.gather(*fetching, return_exceptions=True)

    async def _fetch_one(self, uri: str) -> None:
        if not uri.startswith(f"blob://orgs/{self.org}/") or ".." in uri:
            raise _unusable(uri, "is no blob of this organisation")
        sha256 = digest_of(uri)
        partial = self.folder / f".{sha256}.partial"
        try:
            if await self._write(uri, partial) != sha256:
                raise _unusable(uri, "does not match its URI: its sha256 differs")
            partial.replace(self.folder / sha256)
        except BlobMissing as error:
            raise _unusable(uri, "is not in the blob store") from error
        except BlobCorrupt as error:
            raise _unusable(uri, "does not match its URI: its sha256 differs") from error
        finally:
            partial.unlink(missing_ok=True)

    async def _write(self, uri: str, target: Path) -> str:
        """Write the blob to a new file, and return its sha256. Raises `BlobCorrupt`, `BlobMissing`."""
        if self.blobs.root is not None:
            return await asyncio.to_thread(_link, self.blobs.root / blob_key(uri), target, uri)
        sha256 = digest_of(uri)
        with target.open("wb") as out:
            async for piece in self.blobs.stream(BlobRef(uri=uri, size=0, sha256=sha256)):
                out.write(piece)
        return sha256


def dataset_images(dataset: Path, *, most: int) -> list[str]:
    """Return the blobs of the images that the rows of a file show, each once, at most `most` per message.

    Raises `JobFailure` (bad_dataset) if a row shows an image that is not a blob. A line that is not a valid row has no
    images here: the learner reads every line and reports the error.
    """
    uris: dict[str, None] = {}
    with dataset.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if b"image" not in line:
                continue
            try:
                row = _rows.decode(line)
                uris |= dict.fromkeys(shown_blobs([*row.messages, *row.chosen, *row.rejected], most=most))
            except UserError as error:
                raise JobFailure("bad_dataset", f"row {number}: {error}") from error
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue
    return list(uris)


def _link(blob: Path, target: Path, uri: str) -> str:
    target.unlink(missing_ok=True)
    try:
        os.link(blob, target)
    except FileNotFoundError as error:
        raise BlobMissing(f"{uri} is not in the blob store") from error
    except OSError:  # another file system
        shutil.copyfile(blob, target)
    with target.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _unusable(uri: str, why: str) -> JobFailure:
    return JobFailure(
        "bad_image",
        f"the image {uri} {why}",
        expected="every image of the dataset and of the rollouts in the blob store",
        fix="upload the file again, or run the job again",
    )
