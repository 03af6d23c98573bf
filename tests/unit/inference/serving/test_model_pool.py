"""Which models stay loaded, which give way, and that each is loaded once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from synth.errors import Problem, Transient, UserError
from synth.events import LoraShape
from synth.inference.chat.prompts import ChatFormat
from synth.inference.engines.settings import EngineSettings
from synth.inference.engines.transformers import TransformersEngine
from synth.inference.serving.model_pool import Loaded, ModelFiles, Policies
from synth.inference.tokenizers import load_tokenizer


class Shelf:
    """Real engines of the tiny model under any name but "none"; counts loads, and can hold them back."""

    def __init__(self, model_dir: Path) -> None:
        self.files = ModelFiles(model_dir)
        self.found: list[str] = []
        self.loads = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def find(self, name: str) -> ModelFiles:
        self.found.append(name)
        if name == "none":
            raise UserError(Problem(what="no model 'none'", where="model"))
        return self.files

    async def open(self, files: ModelFiles) -> Loaded:
        await self.gate.wait()
        self.loads += 1
        settings = EngineSettings(device="cpu", kv_budget_bytes=1 << 20)
        engine = await TransformersEngine.load(files.model_dir, version=files.version, settings=settings)
        return Loaded(engine, ChatFormat(load_tokenizer(files.model_dir)))


@pytest.fixture
def shelf(model_dir: Path) -> Shelf:
    return Shelf(model_dir)


@pytest.fixture
async def policies(shelf: Shelf) -> AsyncIterator[Policies]:
    made = Policies(shelf.find, shelf.open, max_models=2, load_timeout=20)
    yield made
    await made.close()


async def use(policies: Policies, name: str) -> Loaded:
    async with policies.lease(name) as loaded:
        return loaded


async def test_a_model_that_many_ask_for_is_loaded_once(policies: Policies, shelf: Shelf) -> None:
    first, *others = await asyncio.gather(*(use(policies, "a") for _ in range(5)))
    assert all(o is first for o in others)
    assert shelf.loads == 1


async def test_the_least_recently_used_idle_model_gives_way(policies: Policies) -> None:
    a, b = await use(policies, "a"), await use(policies, "b")
    await use(policies, "a")
    await use(policies, "c")
    assert sorted(policies.names()) == ["a", "c"]
    assert a.engine.healthy
    assert not b.engine.healthy


async def test_a_model_in_use_is_not_evicted(policies: Policies) -> None:
    async with policies.lease("a") as a, policies.lease("b"):
        with pytest.raises(Transient, match="all 2 places for a model are in use; 'c' has to wait"):
            await use(policies, "c")
        assert a.engine.healthy
    await use(policies, "c")


async def test_training_policies_evict_served_models_and_never_the_other_way(policies: Policies, shelf: Shelf) -> None:
    await use(policies, "a")
    await use(policies, "b")
    one = await policies.hold("job_1", shelf.files)
    two = await policies.hold("job_2", replace(shelf.files, version=7))
    assert (one.engine.version, two.engine.version) == (0, 7)
    with pytest.raises(Transient):
        await use(policies, "a")
    with pytest.raises(Transient, match="'job_3' has to wait"):
        await policies.hold("job_3", shelf.files)

    await policies.release("job_1")
    await policies.release("job_1")

    assert policies.training("job_1") is None
    assert policies.training("job_2") is two
    await use(policies, "a")


async def test_a_pinned_version_needs_no_place_of_its_own_and_goes_with_its_policy(
    policies: Policies, shelf: Shelf
) -> None:
    await policies.hold("job_1", shelf.files)
    await policies.hold("job_2", shelf.files)
    async with policies.lease("job_1@v2", beside="job_1"), policies.lease("job_2@v4", beside="job_2"):
        with pytest.raises(Transient, match="another version is in use; 'job_1@v3' has to wait"):
            async with policies.lease("job_1@v3", beside="job_1"):
                pass
    async with policies.lease("job_1@v3", beside="job_1"):
        assert set(policies.names()) == {"job_1", "job_2", "job_1@v3", "job_2@v4"}
    await policies.release("job_1")
    assert set(policies.names()) == {"job_2", "job_2@v4"}


async def test_an_unknown_model_is_refused_and_takes_no_place(policies: Policies, shelf: Shelf) -> None:
    for _ in range(3):
        with pytest.raises(UserError, match="no model 'none'"):
            await use(policies, "none")
    assert shelf.found == ["none"] * 3
    async with policies.lease("a"), policies.lease("b"):
        pass


async def test_who_hangs_up_does_not_cancel_the_load_that_others_wait_for(policies: Policies, shelf: Shelf) -> None:
    shelf.gate.clear()
    impatient = asyncio.create_task(use(policies, "a"))
    patient = asyncio.create_task(use(policies, "a"))
    await asyncio.sleep(0)
    impatient.cancel()
    await asyncio.wait([impatient])
    shelf.gate.set()
    assert (await patient).engine.healthy
    assert shelf.loads == 1


async def test_a_load_that_takes_too_long_is_given_up(shelf: Shelf) -> None:
    policies = Policies(shelf.find, shelf.open, max_models=1, load_timeout=0.01)
    shelf.gate.clear()
    with pytest.raises(Transient, match=r"'a' did not load in 0\.01 s"):
        await use(policies, "a")
    # Its place is free: the next one is not told to wait for it.
    with pytest.raises(Transient, match=r"'b' did not load"):
        await use(policies, "b")


async def test_a_dead_engine_is_loaded_anew(policies: Policies, shelf: Shelf) -> None:
    dead = await use(policies, "a")
    await dead.engine.close()
    assert (await use(policies, "a")).engine.healthy
    assert shelf.loads == 2


async def test_a_model_that_nobody_asks_for_is_unloaded_and_one_that_is_used_or_trained_is_not(shelf: Shelf) -> None:
    now = 0.0
    policies = Policies(shelf.find, shelf.open, max_models=4, load_timeout=20, clock=lambda: now)
    held = await policies.hold("job_1", shelf.files)
    await use(policies, "a")
    async with policies.lease("b"):
        now = 60.0
        assert await policies.unload_idle(100) == []
        now = 100.0
        assert await policies.unload_idle(100) == ["a"]
        assert sorted(policies.names()) == ["b", "job_1"]
    # What was in use all the time has only now begun to be idle.
    now = 150.0
    assert await policies.unload_idle(100) == []
    now = 200.0
    assert await policies.unload_idle(100) == ["b"]
    assert held.engine.healthy
    await policies.close()


async def test_what_an_engine_stands_on_is_let_go_of_after_it(model_dir: Path, shelf: Shelf) -> None:
    let_go: list[bool] = []

    async def open_on_a_host(files: ModelFiles) -> Loaded:
        loaded = await shelf.open(files)

        async def release() -> None:
            let_go.append(loaded.engine.healthy)

        return replace(loaded, let_go=release)

    policies = Policies(shelf.find, open_on_a_host, max_models=1)
    await use(policies, "a")
    await use(policies, "b")
    assert let_go == [False]
    await policies.close()
    assert let_go == [False, False]


def test_only_weights_of_the_model_itself_that_are_replaced_leave_room_for_nothing_else() -> None:
    base, shape, file = Path("base"), LoraShape(r=8, alpha=16, targets="all-linear"), Path("v1.safetensors")
    assert ModelFiles(base, trained=True).replaced
    assert ModelFiles(base, weights=file, version=1).replaced
    assert not ModelFiles(base).replaced
    assert not ModelFiles(base, lora=shape, trained=True).replaced
    assert not ModelFiles(base, lora=shape, weights=file, version=1).replaced
