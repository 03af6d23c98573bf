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
from synth.inference.serving.model_pool import ModelFiles, ModelPool, ServedModel
from synth.inference.tokenizers import load_tokenizer


class ModelStore:
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

    async def open(self, files: ModelFiles) -> ServedModel:
        await self.gate.wait()
        self.loads += 1
        settings = EngineSettings(device="cpu", kv_budget_bytes=1 << 20)
        engine = await TransformersEngine.load(files.model_dir, version=files.version, settings=settings)
        return ServedModel(engine, ChatFormat(load_tokenizer(files.model_dir)))


@pytest.fixture
def store(model_dir: Path) -> ModelStore:
    return ModelStore(model_dir)


@pytest.fixture
async def model_pool(store: ModelStore) -> AsyncIterator[ModelPool]:
    made = ModelPool(store.find, store.open, max_models=2, load_timeout=20)
    yield made
    await made.close()


async def use(model_pool: ModelPool, name: str) -> ServedModel:
    async with model_pool.lease(name, org="a") as loaded:
        return loaded


async def test_a_model_that_many_ask_for_is_loaded_once(model_pool: ModelPool, store: ModelStore) -> None:
    first, *others = await asyncio.gather(*(use(model_pool, "a") for _ in range(5)))
    assert all(o is first for o in others)
    assert store.loads == 1


async def test_the_least_recently_used_idle_model_gives_way(model_pool: ModelPool) -> None:
    a, b = await use(model_pool, "a"), await use(model_pool, "b")
    await use(model_pool, "a")
    await use(model_pool, "c")
    assert sorted(model_pool.names()) == ["a", "c"]
    assert a.engine.healthy
    assert not b.engine.healthy


async def test_a_model_in_use_is_not_evicted(model_pool: ModelPool) -> None:
    async with model_pool.lease("a", org="a") as a, model_pool.lease("b", org="a"):
        with pytest.raises(Transient, match=r"all 2 places .* \(SYNTH_MAX_MODELS\) are in use; 'c' has to wait"):
            await use(model_pool, "c")
        assert a.engine.healthy
    await use(model_pool, "c")


async def test_training_policies_evict_served_models_and_never_the_other_way(
    model_pool: ModelPool, store: ModelStore
) -> None:
    await use(model_pool, "a")
    await use(model_pool, "b")
    one = await model_pool.hold("job_1", store.files, org="a")
    two = await model_pool.hold("job_2", replace(store.files, version=7), org="a")
    assert (one.engine.version, two.engine.version) == (0, 7)
    with pytest.raises(Transient):
        await use(model_pool, "a")
    with pytest.raises(Transient, match="'job_3' has to wait"):
        await model_pool.hold("job_3", store.files, org="a")

    await model_pool.release("job_1")
    await model_pool.release("job_1")

    assert model_pool.training("job_1") is None
    assert model_pool.training("job_2") is two
    await use(model_pool, "a")


async def test_no_organisation_holds_every_place(store: ModelStore) -> None:
    model_pool = ModelPool(store.find, store.open, max_models=3, spare=1, load_timeout=20)
    await use(model_pool, "idle")
    await model_pool.hold("job_1", store.files, org="loud")
    async with model_pool.lease("chat", org="loud"):
        with pytest.raises(Transient, match=r"'job_2' has to wait: the last of 3 places .* that holds none"):
            await model_pool.hold("job_2", store.files, org="loud")
        with pytest.raises(Transient, match="'another' has to wait: the last of 3 places"):
            async with model_pool.lease("another", org="loud"):
                pass
        # It goes to another organisation, in place of the idle model.
        await model_pool.hold("job_3", store.files, org="quiet")
        assert set(model_pool.names()) == {"job_1", "chat", "job_3"}
    await model_pool.release("job_1")
    await model_pool.hold("job_2", store.files, org="loud")
    await model_pool.close()


async def test_a_pinned_version_needs_no_place_of_its_own_and_goes_with_its_policy(
    model_pool: ModelPool, store: ModelStore
) -> None:
    await model_pool.hold("job_1", store.files, org="a")
    await model_pool.hold("job_2", store.files, org="a")
    async with (
        model_pool.lease("job_1@v2", org="a", pinned_from="job_1"),
        model_pool.lease("job_2@v4", org="a", pinned_from="job_2"),
    ):
        with pytest.raises(Transient, match="another version is in use; 'job_1@v3' has to wait"):
            async with model_pool.lease("job_1@v3", org="a", pinned_from="job_1"):
                pass
    async with model_pool.lease("job_1@v3", org="a", pinned_from="job_1"):
        assert set(model_pool.names()) == {"job_1", "job_2", "job_1@v3", "job_2@v4"}
    await model_pool.release("job_1")
    assert set(model_pool.names()) == {"job_2", "job_2@v4"}


async def test_an_unknown_model_is_refused_and_takes_no_place(model_pool: ModelPool, store: ModelStore) -> None:
    for _ in range(3):
        with pytest.raises(UserError, match="no model 'none'"):
            await use(model_pool, "none")
    assert store.found == ["none"] * 3
    async with model_pool.lease("a", org="a"), model_pool.lease("b", org="a"):
        pass


async def test_who_hangs_up_does_not_cancel_the_load_that_others_wait_for(
    model_pool: ModelPool, store: ModelStore
) -> None:
    store.gate.clear()
    impatient = asyncio.create_task(use(model_pool, "a"))
    patient = asyncio.create_task(use(model_pool, "a"))
    await asyncio.sleep(0)
    impatient.cancel()
    await asyncio.wait([impatient])
    store.gate.set()
    assert (await patient).engine.healthy
    assert store.loads == 1


async def test_a_load_that_takes_too_long_is_given_up(store: ModelStore) -> None:
    model_pool = ModelPool(store.find, store.open, max_models=1, load_timeout=0.01)
    store.gate.clear()
    with pytest.raises(Transient, match=r"'a' did not load in 0\.01 s"):
        await use(model_pool, "a")
    # Its place is free: the next one is not told to wait for it.
    with pytest.raises(Transient, match=r"'b' did not load"):
        await use(model_pool, "b")


async def test_a_download_that_times_out_by_itself_is_not_called_a_slow_load(store: ModelStore) -> None:
    async def find(name: str) -> ModelFiles:
        raise TimeoutError("the hub said nothing")

    model_pool = ModelPool(find, store.open, max_models=1, load_timeout=20)
    with pytest.raises(Transient, match=r"'a' cannot be loaded now: .*the hub said nothing"):
        await use(model_pool, "a")


async def test_a_dead_engine_is_loaded_anew(model_pool: ModelPool, store: ModelStore) -> None:
    dead = await use(model_pool, "a")
    await dead.engine.close()
    assert (await use(model_pool, "a")).engine.healthy
    assert store.loads == 2


async def test_a_model_that_nobody_asks_for_is_unloaded_and_one_that_is_used_or_trained_is_not(
    store: ModelStore,
) -> None:
    now = 0.0
    model_pool = ModelPool(store.find, store.open, max_models=4, load_timeout=20, clock=lambda: now)
    held = await model_pool.hold("job_1", store.files, org="a")
    await use(model_pool, "a")
    async with model_pool.lease("b", org="a"):
        now = 60.0
        assert await model_pool.unload_idle(100) == []
        now = 100.0
        assert await model_pool.unload_idle(100) == ["a"]
        assert sorted(model_pool.names()) == ["b", "job_1"]
    # What was in use all the time has only now begun to be idle.
    now = 150.0
    assert await model_pool.unload_idle(100) == []
    now = 200.0
    assert await model_pool.unload_idle(100) == ["b"]
    assert held.engine.healthy
    await model_pool.close()


async def test_the_host_of_an_engine_is_released_after_the_engine_is_closed(model_dir: Path, store: ModelStore) -> None:
    release_host: list[bool] = []

    async def open_on_a_host(files: ModelFiles) -> ServedModel:
        loaded = await store.open(files)

        async def release() -> None:
            release_host.append(loaded.engine.healthy)

        return replace(loaded, release_host=release)

    model_pool = ModelPool(store.find, open_on_a_host, max_models=1, load_timeout=20)
    await use(model_pool, "a")
    await use(model_pool, "b")
    assert release_host == [False]
    await model_pool.close()
    assert release_host == [False, False]


def test_only_weights_of_the_model_itself_that_are_replaced_leave_room_for_nothing_else() -> None:
    base, shape, file = Path("base"), LoraShape(r=8, alpha=16, targets="all-linear"), Path("v1.safetensors")
    assert ModelFiles(base, expects_new_weights=True).swaps_full_weights
    assert ModelFiles(base, weights=file, version=1).swaps_full_weights
    assert not ModelFiles(base).swaps_full_weights
    assert not ModelFiles(base, lora=shape, expects_new_weights=True).swaps_full_weights
    assert not ModelFiles(base, lora=shape, weights=file, version=1).swaps_full_weights
