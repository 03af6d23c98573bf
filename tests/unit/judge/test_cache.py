"""A kept answer of a judge is returned as it was written, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from synth.blobs import BlobStore
from synth.judge.cache import AnswerCache
from synth.judging.contract import JudgeAnswer

ORG, DIGEST = "org_1", "ab" * 32


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "blobs"


@pytest.fixture
def cache(folder: Path) -> AnswerCache:
    return AnswerCache(BlobStore.open(f"file:{folder}"), keep_s=60.0)


async def test_an_answer_is_found_again(cache: AnswerCache):
    answer = JudgeAnswer(progress=3)
    await cache.put(ORG, DIGEST, answer)
    await cache.put_undelivered(ORG, DIGEST, answer)
    assert await cache.find(ORG, DIGEST, JudgeAnswer) == answer
    assert await cache.find_undelivered(ORG, DIGEST) == answer


async def test_no_damaged_byte_of_an_answer_is_read(cache: AnswerCache, folder: Path):
    await cache.put(ORG, DIGEST, JudgeAnswer(progress=7))
    (file,) = (path for path in folder.rglob("*.json"))
    whole = file.read_bytes()
    for at in range(len(whole)):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert await cache.find(ORG, DIGEST, JudgeAnswer) is None, at
