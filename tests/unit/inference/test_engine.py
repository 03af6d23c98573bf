"""The embedded engine against a plain forward of the same weights."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from synth.errors import Permanent, Transient, UserError
from synth.inference.engines.protocol import SamplingParams
from synth.inference.engines.settings import EngineSettings
from synth.inference.engines.transformers import TransformersEngine
from tests.unit.inference.drive import IM_END, complete, endless, prompt
from tests.unit.inference.tiny import plain_logprobs

TOLERANCE = 1e-5


async def test_logprobs_of_a_ragged_batch_are_those_of_a_plain_forward(
    engine: TransformersEngine, reference: Any
) -> None:
    prompts = [prompt(i, length) for i, length in enumerate((1, 3, 40, 7, 18, 18, 100, 2))]
    params = [SamplingParams(max_tokens=n) for n in (30, 5, 17, 60, 1, 25, 33, 8)]

    results = await asyncio.gather(*(complete(engine, p, s) for p, s in zip(prompts, params, strict=True)))

    for p, r in zip(prompts, results, strict=True):
        plain = plain_logprobs(reference, p, r.token_ids, ban_end=False)
        assert torch.tensor(r.logprobs).sub(plain).abs().max() <= TOLERANCE
        assert len(r.token_ids) == len(r.logprobs) == len(r.versions)


async def test_requests_that_join_and_leave_mid_way_do_not_change_each_other(
    engine: TransformersEngine, reference: Any
) -> None:
    joined = asyncio.Event()
    first_prompt, seen = prompt(1, 12), 0

    def after_ten(_: object) -> None:
        nonlocal seen
        seen += 1
        if seen == 10:
            joined.set()

    long = asyncio.create_task(complete(engine, first_prompt, endless(200, seed=5), stream=True, on_delta=after_ten))
    await asyncio.wait_for(joined.wait(), 20)
    # Short ones join while the long one runs, and leave holes that later rows move into.
    shorts = [prompt(100 + i, 5 + 3 * i) for i in range(9)]
    results = await asyncio.gather(*(complete(engine, p, endless(3 + 5 * (i % 4))) for i, p in enumerate(shorts)))
    whole = await long

    for p, r in [(first_prompt, whole), *zip(shorts, results, strict=True)]:
        assert torch.tensor(r.logprobs).sub(plain_logprobs(reference, p, r.token_ids)).abs().max() <= TOLERANCE
    assert len(whole.token_ids) == 200


async def test_greedy_equals_the_librarys_generate(engine: TransformersEngine, reference: Any) -> None:
    for seed in range(4):
        ids = prompt(seed, 10 + seed)
        ours = await complete(engine, ids, SamplingParams(max_tokens=40, temperature=0))
        theirs = reference.generate(torch.tensor([ids]), max_new_tokens=40, do_sample=False)[0, len(ids) :]
        assert ours.token_ids == theirs.tolist()


async def test_a_group_of_samples_of_one_prompt_is_prefilled_once(engine: TransformersEngine, reference: Any) -> None:
    prompts = [prompt(i, 18) for i in range(4)]
    results = await asyncio.gather(*(complete(engine, p, endless(10)) for p in prompts for _ in range(8)))

    stats = engine.stats()
    assert stats.prefills == 4
    assert stats.prompts_shared == 28
    assert len({tuple(r.token_ids) for r in results}) > 24  # samples of a group differ
    for i, r in enumerate(results):
        got = torch.tensor(r.logprobs) - plain_logprobs(reference, prompts[i // 8], r.token_ids)
        assert got.abs().max() <= TOLERANCE


async def test_a_late_sample_of_a_running_prompt_copies_its_keys_and_values(
    engine: TransformersEngine, reference: Any
) -> None:
    ids, running = prompt(3, 20), asyncio.Event()
    first = asyncio.create_task(complete(engine, ids, endless(300), stream=True, on_delta=lambda _: running.set()))
    await asyncio.wait_for(running.wait(), 20)
    late = await complete(engine, ids, endless(10))
    await first

    assert engine.stats().prefills == 1
    assert torch.tensor(late.logprobs).sub(plain_logprobs(reference, ids, late.token_ids)).abs().max() <= TOLERANCE


async def test_a_sampled_eos_ends_the_text_and_is_among_the_tokens(engine: TransformersEngine) -> None:
    others = tuple(i for i in range(320) if i != IM_END)
    only_eos = await complete(engine, prompt(1, 5), SamplingParams(max_tokens=9, banned=others))
    assert (only_eos.token_ids, only_eos.finish_reason) == ([IM_END], "stop")
    cut = await complete(engine, prompt(1, 5), endless(9))
    assert (len(cut.token_ids), cut.finish_reason) == (9, "length")


async def test_a_seeded_request_repeats_whatever_runs_beside_it(engine: TransformersEngine) -> None:
    alone = await complete(engine, prompt(7, 9), endless(20, seed=42))
    among = await asyncio.gather(
        complete(engine, prompt(8, 30), endless(20)),
        complete(engine, prompt(7, 9), endless(20, seed=42)),
        complete(engine, prompt(7, 9), endless(20, seed=43)),
    )
    assert among[1].token_ids == alone.token_ids
    assert among[2].token_ids != alone.token_ids


async def test_a_stop_string_ends_the_text_when_it_is_complete(engine: TransformersEngine) -> None:
    free = await complete(engine, prompt(5, 9), endless(40, seed=1))
    decode = engine._batcher._decode_text  # pyright: ignore[reportPrivateUsage]
    runs = re.findall(r"[ -~]{3}", decode(free.token_ids)[3:])
    stop = runs[0]

    cut = await complete(engine, prompt(5, 9), endless(40, seed=1, stop=(stop,)))

    assert (cut.finish_reason, cut.stop_text) == ("stop", stop)
    assert cut.token_ids == free.token_ids[: len(cut.token_ids)]
    assert stop in decode(cut.token_ids)
    assert stop not in decode(cut.token_ids[:-1])


async def test_requests_beyond_the_kv_budget_wait_their_turn_and_all_finish(model_dir: Path) -> None:
    # 512 bytes a token in this model: room for 128 tokens, so for two of these requests at a time.
    settings = EngineSettings(device="cpu", kv_budget_bytes=128 * 512, seed=0)
    engine = await TransformersEngine.load(model_dir, settings=settings)
    order: list[int] = []

    async def one(i: int) -> None:
        result = await complete(engine, prompt(i, 20), endless(40))
        assert len(result.token_ids) == 40
        order.append(i)

    await asyncio.gather(*(one(i) for i in range(7)))
    assert order == sorted(order)
    assert engine.max_context == 128
    await engine.close()


async def test_a_prompt_longer_than_the_context_is_refused_by_name(engine: TransformersEngine) -> None:
    with pytest.raises(UserError, match="the prompt has 600 tokens; expected 1 to 511"):
        await complete(engine, prompt(1, 600), endless(5))


async def test_abort_frees_the_row_and_returns_what_was_sampled(engine: TransformersEngine) -> None:
    running = asyncio.Event()
    task = asyncio.create_task(
        complete(engine, prompt(1, 8), endless(500), stream=True, request_id="r", on_delta=lambda _: running.set())
    )
    await asyncio.wait_for(running.wait(), 20)
    engine.abort("r")
    result = await asyncio.wait_for(task, 20)

    assert result.finish_reason == "abort"
    assert 1 <= len(result.token_ids) < 500
    await complete(engine, prompt(2, 3), endless(1))
    assert engine.stats().running == 0


async def test_closing_the_stream_frees_the_row(engine: TransformersEngine) -> None:
    stream = engine.generate(prompt(1, 8), endless(500), request_id="r", timeout=30, stream=True)
    await anext(stream)
    await stream.aclose()  # type: ignore[attr-defined]
    await complete(engine, prompt(2, 3), endless(1))
    assert engine.stats().running == 0


async def test_a_request_past_its_deadline_fails_and_frees_its_row(engine: TransformersEngine) -> None:
    with pytest.raises(Transient, match=r"not done in its 0\.02 s"):
        async for _ in engine.generate(prompt(1, 8), endless(500), request_id="r", timeout=0.02):
            pass
    await complete(engine, prompt(2, 3), endless(1))
    assert engine.stats().running == 0


async def test_when_the_engines_thread_dies_everyone_hears_of_it(
    engine: TransformersEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    batcher = engine._batcher  # pyright: ignore[reportPrivateUsage]
    real, steps = batcher.step, 0

    def step() -> None:
        nonlocal steps
        steps += 1
        if steps > 5:
            raise RuntimeError("out of memory")
        real()

    monkeypatch.setattr(batcher, "step", step)
    results = await asyncio.gather(
        *(complete(engine, prompt(i, 4), endless(50)) for i in range(3)), return_exceptions=True
    )
    assert all(isinstance(r, Transient) and "out of memory" in str(r) for r in results)
    assert not engine.healthy
    with pytest.raises(Transient, match="out of memory"):
        await complete(engine, prompt(1, 4), endless(5))


async def test_a_request_that_kills_the_engine_before_it_joins_hears_of_it_too(
    engine: TransformersEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def add(_: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(engine._batcher, "add", add)  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(Transient, match="the engine died: RuntimeError: broken"):
        await complete(engine, prompt(1, 4), endless(5))


async def test_a_directory_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Permanent, match="no model can be loaded"):
        await TransformersEngine.load(tmp_path, settings=EngineSettings())
