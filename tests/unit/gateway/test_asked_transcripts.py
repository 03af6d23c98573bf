"""Transcripts that clients have judged lie in the blob store while somebody asks about them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from synth.blobs import BlobStore
from synth.gateway.asked_transcripts import AskedTranscripts


@pytest.fixture
def blobs(tmp_path: Path) -> BlobStore:
    return BlobStore.open(f"file:{tmp_path}")


async def test_the_last_request_takes_it_away_unless_the_judge_goes_on(blobs: BlobStore):
    asked = AskedTranscripts(blobs)
    async with asked.hold("org_a", b"x", "d") as first:
        async with asked.hold("org_a", b"x", "d") as second:
            assert first.ref == second.ref
        assert await blobs.get_bytes(first.ref) == b"x"
    assert await blobs.find_bytes("judging/org_a/asked/d.json") is None
    async with asked.hold("org_a", b"x", "d") as again:
        again.goes_on = True
    assert await blobs.find_bytes("judging/org_a/asked/d.json") == b"x"


async def test_a_request_that_fails_takes_it_away(blobs: BlobStore):
    with pytest.raises(TimeoutError):
        async with AskedTranscripts(blobs).hold("org_a", b"x", "d"):
            raise TimeoutError
    assert await blobs.uris_below("judging") == []


async def test_what_another_gateway_has_written_again_stays(blobs: BlobStore, tmp_path: Path):
    async with AskedTranscripts(blobs).hold("org_a", b"x", "d"):
        await blobs.put_bytes("judging/org_a/asked/d.json", b"x")
        # Later than the first by more than the clock of the file system is coarse.
        os.utime(tmp_path / "judging/org_a/asked/d.json", (2e9, 2e9))
    assert await blobs.find_bytes("judging/org_a/asked/d.json") == b"x"
