"""What every engine must do, as tests: collected where an engine is at hand (`test_engine_contract` here, tests/vllm).

Whoever collects them has fixtures `model_dir`, `reference` (its plain model), `tolerance` (nats), `engine` (a policy
whose full weights can be swapped, version 0) and `lora_engine` (a policy that adapters can be given to, version 0).
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from synth.errors import Permanent, SynthError, Transient, UserError
from synth.inference.engines.limits import ContextOverflow
from synth.inference.engines.protocol import Delta, Engine, SamplingParams
from synth.inference.engines.sampling_time import SamplingTime
from synth.inference.tokenizers import load_tokenizer
from synth.weights.policy_file import write_policy
from tests.unit.inference.engines.completions import IM_END, complete, endless, prompt, start_completions
from tests.unit.inference.engines.expected import distributions, drawn_from, max_error, scored
from tests.unit.inference.tiny_model import (
    lora_model,
    perturbed_model,
    plain_logprobs,
    randomize_adapter,
    write_adapter_policy,
    write_full_policy,
)


async def test_logprobs_of_a_ragged_batch_are_those_of_a_plain_forward(
    engine: Engine, reference: Any, tolerance: float
) -> None:
    prompts = [prompt(i, length) for i, length in enumerate((1, 3, 40, 7, 18, 18, 100, 2))]
    params = [SamplingParams(max_tokens=n) for n in (30, 5, 17, 60, 1, 25, 33, 8)]

    results = await asyncio.gather(*(complete(engine, p, s) for p, s in zip(prompts, params, strict=True)))

    for p, r in zip(prompts, results, strict=True):
        assert max_error(r, plain_logprobs(reference, p, r.token_ids, ban_end=False)) <= tolerance
        assert len(r.token_ids) == len(r.logprobs) == len(r.versions)


async def test_requests_that_join_and_leave_mid_way_do_not_change_each_other(
    engine: Engine, reference: Any, tolerance: float
) -> None:
    first_prompt = prompt(1, 12)
    (long,) = await start_completions(engine, [first_prompt], 200)
    # Short ones join while the long one runs, and leave holes that later rows move into.
    shorts = [prompt(100 + i, 5 + 3 * i) for i in range(9)]
    results = await asyncio.gather(*(complete(engine, p, endless(3 + 5 * (i % 4))) for i, p in enumerate(shorts)))
    whole = await long

    for p, r in [(first_prompt, whole), *zip(shorts, results, strict=True)]:
        assert max_error(r, plain_logprobs(reference, p, r.token_ids)) <= tolerance
    assert len(whole.token_ids) == 200


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(max_tokens=30, temperature=0.7),
        SamplingParams(max_tokens=30, temperature=1.3, banned=(IM_END, 5, 17)),
        SamplingParams(max_tokens=30, top_p=0.8),
        SamplingParams(max_tokens=30, temperature=0.7, top_k=20, top_p=0.9, banned=(IM_END,)),
        SamplingParams(max_tokens=30, temperature=0, banned=(IM_END,)),
        SamplingParams(max_tokens=30, temperature=0, top_p=0.5, top_k=3, banned=(IM_END,), frequency_penalty=2.0),
        SamplingParams(max_tokens=30, banned=(IM_END,), logit_bias=((5, 6.0), (7, 5.5), (IM_END, 100.0))),
        SamplingParams(max_tokens=30, banned=(IM_END,), frequency_penalty=-2.0, presence_penalty=1.5, reply_tokens=4),
        SamplingParams(
            max_tokens=30,
            temperature=0.7,
            top_k=20,
            top_p=0.9,
            banned=(IM_END,),
            logit_bias=((5, 6.0), (9, -100.0)),
            frequency_penalty=0.5,
            presence_penalty=-0.5,
        ),
    ],
    ids=["T", "T-banned", "top-p", "all", "greedy", "greedy-penalties", "bias", "penalties", "everything"],
)
async def test_logprobs_are_those_of_the_distribution_that_was_drawn_from(
    engine: Engine, reference: Any, tolerance: float, params: SamplingParams
) -> None:
    prompts = [prompt(40 + i, 6 + i) for i in range(4)]
    beside = complete(engine, prompt(39, 5), endless(40, top_p=0.5))
    *results, _ = await asyncio.gather(*(complete(engine, p, params) for p in prompts), beside)
    for p, r in zip(prompts, results, strict=True):
        assert not set(r.token_ids) & set(params.banned)
        assert max_error(r, drawn_from(reference, p, r.token_ids, params)) <= tolerance


@pytest.mark.parametrize("stream", [False, True])
async def test_the_likeliest_tokens_are_listed_beside_each_token(
    engine: Engine, reference: Any, tolerance: float, stream: bool
) -> None:
    params = endless(12, temperature=0.7, top_k=3, presence_penalty=1.0, logit_bias=((9, -100.0),))
    requests = [replace(params, top_logprobs=n) for n in (0, 2, 20)]
    results = await asyncio.gather(*(complete(engine, prompt(3, 9), r, stream=stream) for r in requests))
    assert results[0].top_logprobs == []
    for n, r in zip((2, 20), results[1:], strict=True):
        expected = distributions(reference, prompt(3, 9), r.token_ids, params)
        assert len(r.top_logprobs) == len(r.token_ids) == 12
        for listed, token, logprob, logp_V in zip(r.top_logprobs, r.token_ids, r.logprobs, expected, strict=True):
            best = logp_V.topk(min(n, 3))  # what top-k has left out is not listed
            assert [token for token, _ in listed] == best.indices.tolist()
            assert torch.allclose(torch.tensor([logp for _, logp in listed]), best.values, atol=tolerance)
            assert dict(listed).get(token, logprob) == logprob


async def test_a_request_with_bias_penalties_and_a_list_changes_nothing_of_those_beside_it(engine: Engine) -> None:
    def plain(seed: int) -> Any:
        return complete(engine, prompt(seed, 9), endless(20, seed=seed))

    changed = endless(
        20, seed=1, frequency_penalty=2.0, presence_penalty=2.0, top_logprobs=20, logit_bias=((5, 100.0),)
    )
    before = await asyncio.gather(*(plain(seed) for seed in (1, 2, 3)))
    among = await asyncio.gather(plain(1), complete(engine, prompt(2, 9), changed), plain(3))
    assert [among[0], among[2]] == [before[0], before[2]]
    assert among[1].token_ids == [5] * 20


async def test_greedy_equals_the_librarys_generate(engine: Engine, reference: Any) -> None:
    for seed in range(4):
        ids = prompt(seed, 10 + seed)
        ours = await complete(engine, ids, SamplingParams(max_tokens=40, temperature=0))
        theirs = reference.generate(torch.tensor([ids]), max_new_tokens=40, do_sample=False)[0, len(ids) :]
        assert ours.token_ids == theirs.tolist()


async def test_a_sampled_eos_ends_the_text_and_is_among_the_tokens(engine: Engine) -> None:
    others = tuple(i for i in range(320) if i != IM_END)
    only_eos = await complete(engine, prompt(1, 5), SamplingParams(max_tokens=9, banned=others))
    assert (only_eos.token_ids, only_eos.finish_reason) == ([IM_END], "stop")
    assert only_eos.logprobs == [0.0]  # bans are exact
    cut = await complete(engine, prompt(1, 5), endless(9))
    assert (len(cut.token_ids), cut.finish_reason) == (9, "length")


async def test_a_seeded_request_repeats_whatever_runs_beside_it(engine: Engine) -> None:
    alone = await complete(engine, prompt(7, 9), endless(20, seed=42))
    among = await asyncio.gather(
        complete(engine, prompt(8, 30), endless(20)),
        complete(engine, prompt(7, 9), endless(20, seed=42)),
        complete(engine, prompt(7, 9), endless(20, seed=43)),
    )
    assert among[1].token_ids == alone.token_ids
    assert among[2].token_ids != alone.token_ids


async def test_a_stop_string_ends_the_text_when_it_is_complete(engine: Engine, model_dir: Path) -> None:
    free = await complete(engine, prompt(5, 9), endless(40, seed=1))
    decode = load_tokenizer(model_dir).decode
    stop = re.findall(r"[ -~]{3}", decode(free.token_ids)[3:])[0]

    cut = await complete(engine, prompt(5, 9), endless(40, seed=1, stop=(stop,)))

    assert (cut.finish_reason, cut.stop_text) == ("stop", stop)
    assert cut.token_ids == free.token_ids[: len(cut.token_ids)]
    assert stop in decode(cut.token_ids)
    assert stop not in decode(cut.token_ids[:-1])


async def test_a_stream_brings_what_the_whole_would_have(engine: Engine) -> None:
    whole = await complete(engine, prompt(6, 9), endless(30, seed=3))
    deltas: list[Delta] = []
    joined = await complete(engine, prompt(6, 9), endless(30, seed=3), stream=True, on_delta=deltas.append)
    assert joined.token_ids == whole.token_ids
    assert len(deltas) > 1
    assert [d.finish_reason for d in deltas][-1:] == ["length"]
    assert {d.finish_reason for d in deltas[:-1]} == {None}


async def test_a_prompt_longer_than_the_context_is_refused_by_name(engine: Engine) -> None:
    with pytest.raises(ContextOverflow) as refused:
        await complete(engine, prompt(1, 600), endless(5))
    said = "maximum context length is 512 tokens. However, you requested 605 tokens (600 in the messages, 5 in the"
    assert said in str(refused.value)


async def test_a_text_ends_where_the_context_does(engine: Engine) -> None:
    result = await complete(engine, prompt(1, 500), endless(50))
    assert (len(result.token_ids), result.finish_reason) == (12, "length")


async def test_abort_returns_what_was_sampled(engine: Engine, reference: Any, tolerance: float) -> None:
    task, other = await start_completions(engine, [prompt(1, 8), prompt(2, 8)], 490, names=("r", "s"))
    for request_id in ("r", "s", "nobody"):
        engine.abort(request_id)
    for p, result in zip((prompt(1, 8), prompt(2, 8)), await asyncio.gather(task, other), strict=True):
        assert result.finish_reason == "abort"
        assert 1 <= len(result.token_ids) == len(result.versions) < 490
        assert max_error(result, plain_logprobs(reference, p, result.token_ids)) <= tolerance
    await complete(engine, prompt(2, 3), endless(1))
    assert engine.stats().running == 0


async def test_an_abort_at_the_first_moment_of_a_request_is_not_lost(engine: Engine) -> None:
    task = asyncio.create_task(complete(engine, prompt(1, 8), endless(490), request_id="r"))
    await asyncio.sleep(0)
    engine.abort("r")
    assert (await task).finish_reason == "abort"


async def test_who_gives_up_waiting_for_a_score_costs_nobody_else_anything(engine: Engine) -> None:
    (running,) = await start_completions(engine, [prompt(1, 8)], 60)
    scores = [asyncio.create_task(engine.score(prompt(i, 400))) for i in range(8)]
    await asyncio.sleep(0)
    for score in scores:
        score.cancel()
    assert (await running).finish_reason == "length"
    assert engine.healthy


async def test_closing_the_stream_frees_the_place(engine: Engine) -> None:
    stream = engine.generate(prompt(1, 8), endless(500), request_id="r", time=SamplingTime(30), stream=True)
    await anext(stream)
    await stream.aclose()  # type: ignore[attr-defined]
    await complete(engine, prompt(2, 3), endless(1))
    assert engine.stats().running == 0


async def test_a_reply_whose_time_is_over_keeps_what_was_sampled_and_frees_its_place(engine: Engine) -> None:
    time = SamplingTime(60)
    deltas = engine.generate(prompt(1, 8), endless(500), request_id="r", time=time, stream=True)
    await anext(deltas)
    time.end()
    *_, last = [delta async for delta in deltas]
    assert (last.finish_reason, last.out_of_time) == ("length", True)
    with pytest.raises(Transient, match="no token of the completion was sampled in its time"):
        [d async for d in engine.generate(prompt(1, 8), endless(500), request_id="s", time=time)]
    assert engine.stats().running == 0


async def test_a_score_is_that_of_a_plain_forward_while_others_run(
    engine: Engine, reference: Any, tolerance: float
) -> None:
    running = await start_completions(engine, [prompt(9, 30)], 100)
    for length in (2, 60, 400):
        text = prompt(length, length)
        plain = plain_logprobs(reference, text[:1], text[1:], ban_end=False)
        assert (torch.tensor(await engine.score(text)) - plain).abs().max() <= tolerance
    (result,) = await asyncio.gather(*running)
    assert max_error(result, plain_logprobs(reference, prompt(9, 30), result.token_ids)) <= tolerance
    for text in ([5], prompt(1, 600)):
        with pytest.raises(UserError, match="expected 2 to 511"):
            await engine.score(text)


async def test_a_swap_mid_generation_is_exact_on_both_sides_and_stamped(
    engine: Engine, model_dir: Path, reference: Any, tolerance: float, tmp_path: Path
) -> None:
    new = perturbed_model(model_dir, 1)
    prompts = [prompt(i, 5 + 7 * i) for i in range(5)]
    tasks = await start_completions(engine, prompts, 400)

    proof = await engine.update_weights(write_full_policy(tmp_path, new, 1), 1)
    results = await asyncio.gather(*tasks)

    assert (proof.version, proof.matched) == (1, proof.tensors)
    assert engine.version == 1
    for p, r in zip(prompts, results, strict=True):
        assert set(r.versions) == {0, 1}
        cut = r.versions.index(1)
        assert r.versions == [0] * cut + [1] * (400 - cut)
        old, fresh = (plain_logprobs(m, p, r.token_ids) for m in (reference, new))
        got = torch.tensor(r.logprobs)
        assert (got - old)[:cut].abs().max() <= tolerance
        # Exact under the new weights alone: the keys and values of the old ones are gone (decision 30).
        assert (got - fresh)[cut:].abs().max() <= tolerance


async def test_a_prompt_that_ran_before_the_swap_is_prefilled_again_after_it(
    engine: Engine, model_dir: Path, tolerance: float, tmp_path: Path
) -> None:
    new, ids = perturbed_model(model_dir, 2), prompt(1, 70)
    tasks = await start_completions(engine, [ids], 300)
    await engine.update_weights(write_full_policy(tmp_path, new, 1), 1)
    late = await complete(engine, ids, endless(10))
    await asyncio.gather(*tasks)
    assert max_error(late, plain_logprobs(new, ids, late.token_ids)) <= tolerance
    text = prompt(4, 30)
    plain = plain_logprobs(new, text[:1], text[1:], ban_end=False)
    assert (torch.tensor(await engine.score(text)) - plain).abs().max() <= tolerance


async def test_a_file_that_does_not_fit_changes_nothing(
    engine: Engine, model_dir: Path, reference: Any, tolerance: float, tmp_path: Path
) -> None:
    new = perturbed_model(model_dir, 3)
    tensors = {k: v for k, v in new.state_dict().items() if k != "lm_head.weight"}
    tensors["model.norm.weight"] = torch.ones(63)
    file = tmp_path / "odd.safetensors"
    write_policy(file, tensors, kind="full", version=1)

    with pytest.raises(Permanent, match=r"1 have another shape, first 'model\.norm\.weight'"):
        await engine.update_weights(file, 1)
    result = await complete(engine, prompt(1, 9), endless(12))

    assert set(result.versions) == {0}
    assert max_error(result, plain_logprobs(reference, prompt(1, 9), result.token_ids)) <= tolerance


async def test_a_flipped_byte_or_another_version_is_refused(engine: Engine, model_dir: Path, tmp_path: Path) -> None:
    file = write_full_policy(tmp_path, perturbed_model(model_dir, 4), 1)
    with pytest.raises(Permanent, match="holds policy version 1, expected 2"):
        await engine.update_weights(file, 2)
    body = bytearray(file.read_bytes())
    body[-5] ^= 1
    file.write_bytes(body)
    with pytest.raises(Permanent, match="1 of 24 tensors differ from their digest"):
        await engine.update_weights(file, 1)
    assert engine.version == 0


async def test_weights_that_are_not_finite_fail_the_request_not_the_engine(
    engine: Engine, model_dir: Path, reference: Any, tmp_path: Path
) -> None:
    broken = perturbed_model(model_dir, 5)
    with torch.no_grad():
        broken.model.norm.weight.fill_(float("nan"))
    await engine.update_weights(write_full_policy(tmp_path, broken, 1), 1)
    with pytest.raises(SynthError, match="policy version 1 gives logits that are not finite"):
        await complete(engine, prompt(1, 9), SamplingParams(max_tokens=5))
    await engine.update_weights(write_full_policy(tmp_path, reference, 2), 2)
    assert (await complete(engine, prompt(1, 9), endless(5))).versions == [2] * 5


@pytest.mark.parametrize("temperature", [1.0, 0.7])
async def test_every_token_under_an_adapter_is_of_the_version_that_it_claims(
    lora_engine: Engine, model_dir: Path, reference: Any, tolerance: float, tmp_path: Path, temperature: float
) -> None:
    adapted, ids = lora_model(model_dir), prompt(3, 70)
    tasks = await start_completions(lora_engine, [ids], 200, temperature=temperature)
    plain: dict[int, Any] = {0: reference}
    results: list[Delta] = []
    for version in (1, 2):
        randomize_adapter(adapted, version)
        proof = await lora_engine.update_weights(write_adapter_policy(tmp_path, adapted, version), version)
        assert proof.matched == proof.tensors == 28
        results.append(await complete(lora_engine, ids, endless(20, temperature=temperature)))
        assert results[-1].versions == [version] * 20
        base = plain_logprobs(reference, ids, results[-1].token_ids, temperature=temperature)
        assert max_error(results[-1], base) > 0.05
        assert (torch.tensor(await lora_engine.score(ids)) - scored(adapted, ids)).abs().max() <= tolerance
        tasks += await start_completions(lora_engine, [ids], 30, temperature=temperature)
    results += await asyncio.gather(*tasks)

    assert {v for r in results for v in r.versions} == {0, 1, 2}
    for version in (0, 1, 2):
        if version:
            randomize_adapter(adapted, version)
            plain[version] = adapted
        for r in results:
            expected = plain_logprobs(plain[version], ids, r.token_ids, temperature=temperature)
            of_this = torch.tensor(r.versions) == version
            assert not of_this.any() or (torch.tensor(r.logprobs) - expected)[of_this].abs().max() <= tolerance
