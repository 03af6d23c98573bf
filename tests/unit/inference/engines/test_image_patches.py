"""The patches of vLLM's requests: computed once, and no more of them open than there is room for."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from synth.errors import UserError
from synth.images.processor import ImageProcessor
from synth.inference.engines.protocol import EngineImage
from synth.inference.engines.vllm.image_patches import GivenUp, PatchStore
from tests.unit.inference.vision_model import VisionReference, picture

#: Of an image of 64 x 64 pixels: 16 patches of 1,536 values, in bfloat16.
ONE = 16 * 1536 * 2


@pytest.fixture(scope="module")
def reference(vision_dir: Path) -> VisionReference:
    return VisionReference(vision_dir)


def store(reference: VisionReference, *, room: int = 2, cached: int = 0) -> PatchStore:
    return PatchStore(reference.processor, dtype=torch.bfloat16, open_bytes=room * ONE, cache_bytes=cached * ONE)


class Requests:
    """Requests for so many images each, and the order in which they are let in."""

    def __init__(self, patches: PatchStore, reference: VisionReference) -> None:
        self.patches, self._reference = patches, reference
        self._let_in, self._ends = asyncio.Queue[str](), dict[str, asyncio.Event]()
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def begin(self, name: str, count: int, policy: str = "policy") -> asyncio.Task[None]:
        self._ends[name] = asyncio.Event()
        self._tasks[name] = asyncio.create_task(self._run(name, count, policy))
        await asyncio.sleep(0)
        return self._tasks[name]

    async def entered(self) -> str:
        return await asyncio.wait_for(self._let_in.get(), 20)

    async def end(self, name: str) -> None:
        self._ends[name].set()
        await self._tasks[name]

    def nobody_else(self) -> bool:
        return self._let_in.empty()

    async def _run(self, name: str, count: int, policy: str) -> None:
        images = [self._reference.shown(picture(k)) for k in range(count)]
        async with self.patches.open(images, policy=policy, name=name) as read:
            assert [tuple(p.shape) for p in read] == [(16, 1536)] * count
            self._let_in.put_nowait(name)
            await self._ends[name].wait()


@pytest.fixture
def requests(reference: VisionReference) -> Requests:
    return Requests(store(reference), reference)


async def test_requests_of_a_policy_wait_for_room_and_are_let_in_in_order(requests: Requests):
    for name, count in (("a", 2), ("b", 1), ("c", 2), ("d", 5), ("e", 1)):
        await requests.begin(name, count)
    for i, name in enumerate("abcde"):
        assert await requests.entered() == name
        # Whoever came in before is out: two do not fit.
        assert requests.nobody_else()
        assert requests.patches.waiting("policy") == 4 - i
        await requests.end(name)
    assert requests.patches.open_bytes == 0


async def test_policies_take_turns_and_a_small_request_need_not_wait_behind_a_large_one(requests: Requests):
    await requests.begin("first", 1, "one")
    assert await requests.entered() == "first"
    for k in range(3):
        await requests.begin(f"large {k}", 9, "one")
    await requests.begin("small", 1, "other")
    assert await requests.entered() == "small"
    await requests.end("first")
    await requests.end("small")
    assert await requests.entered() == "large 0"
    await requests.begin("small again", 1, "other")
    await requests.end("large 0")
    for name in ("large 1", "small again", "large 2"):
        assert await requests.entered() == name
        assert requests.nobody_else()
        await requests.end(name)


async def test_a_large_request_is_passed_so_many_times_and_no_more(requests: Requests):
    await requests.begin("0", 1, "small")
    assert await requests.entered() == "0"
    await requests.begin("large", 3, "large")
    passed = 0
    while True:
        await requests.begin(str(passed + 1), 1, "small")
        if requests.patches.waiting("small"):
            break
        assert await requests.entered() == str(passed + 1)
        await requests.end(str(passed))
        passed += 1
    assert passed == 16
    await requests.end(str(passed))
    assert await requests.entered() == "large"
    await requests.end("large")
    assert await requests.entered() == str(passed + 1)
    await requests.end(str(passed + 1))


async def test_who_gives_up_waiting_or_is_cancelled_leaves_the_room_to_others(requests: Requests):
    patches = requests.patches
    await requests.begin("a", 2)
    assert await requests.entered() == "a"
    given_up, cancelled = await requests.begin("b", 2), await requests.begin("c", 2)
    await requests.begin("d", 1)
    assert patches.give_up("policy", "b")
    assert not patches.give_up("policy", "a")
    with pytest.raises(GivenUp):
        await given_up
    cancelled.cancel()
    await asyncio.wait([cancelled])
    assert patches.waiting("policy") == 1
    await requests.end("a")
    assert await requests.entered() == "d"
    assert patches.open_bytes == ONE
    await requests.end("d")
    assert patches.open_bytes == 0


async def test_who_is_cancelled_just_when_let_in_gives_the_room_back(requests: Requests):
    await requests.begin("a", 2)
    assert await requests.entered() == "a"
    late = await requests.begin("b", 2)
    ending = asyncio.create_task(requests.end("a"))
    while requests.patches.waiting("policy") != 0:  # noqa: ASYNC110
        await asyncio.sleep(0)
    late.cancel()
    await asyncio.wait([late, ending])
    assert requests.patches.open_bytes == 0


async def test_an_image_is_computed_once_while_it_is_open_or_was_shown_last(
    reference: VisionReference, monkeypatch: pytest.MonkeyPatch
):
    read, patches_of = list[object](), ImageProcessor.patches

    def count(processor: ImageProcessor, body: bytes, image: object) -> object:
        read.append(body)
        return patches_of(processor, body, image)  # type: ignore[arg-type]

    monkeypatch.setattr(ImageProcessor, "patches", count)
    patches = store(reference, room=9, cached=1)
    one, two = (reference.shown(picture(seed)) for seed in (1, 2))

    async def show(*images: EngineImage) -> None:
        async with patches.open(images, policy=1, name="a"):
            pass

    await asyncio.gather(show(one), show(one))
    await show(one)
    assert len(read) == 1
    await show(two)
    await show(one)
    assert len(read) == 3


async def test_a_broken_image_ends_its_request_alone(reference: VisionReference):
    patches, good = store(reference), reference.shown(picture(1))
    with pytest.raises(UserError, match="cannot be decoded"):
        async with patches.open([replace(good, body=good.body[:-40])], policy=1, name="a"):
            raise AssertionError("it is not let in")
    async with patches.open([good], policy=1, name="a") as [read]:
        assert torch.equal(read, torch.from_numpy(reference.processor.file_patches(good.body, good.shown)).bfloat16())
    assert patches.open_bytes == 0
