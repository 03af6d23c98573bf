"""A Thinking variant that sees: its thoughts end at their budget, and what ends them is never trained."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from synth.inference.api.requests import JobSampling
from synth.inference.chat.prompts import ChatFormat
from synth.inference.engines.settings import EngineSettings
from synth.inference.engines.transformers import TransformersEngine
from synth.local.tiny_models.qwen3_vl import make_tiny_qwen3_vl
from synth.trajectories import CompletionRecord, build_branches
from tests.image_server import data_uri
from tests.unit.inference.api.test_images import cid, show
from tests.unit.inference.one_model_service import Served
from tests.unit.inference.vision_model import VisionReference, picture

BUDGET, MOST = 6, 14
RED, BLUE = picture(1), picture(2, 96, 64)


@pytest.fixture(scope="module")
def thinking_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_qwen3_vl(tmp_path_factory.mktemp("vl") / "tiny-thinking", thinking=True).path


@pytest.fixture
async def served(thinking_dir: Path) -> AsyncIterator[Served]:
    engine = await TransformersEngine.load(thinking_dir, settings=EngineSettings(device="cpu", seed=0))
    chat = ChatFormat.load(thinking_dir)
    one = Served(engine, chat)
    # Without its end of turn, a reply has all of its tokens.
    one.router.sampling = JobSampling(max_tokens=MOST, thinking_budget=BUDGET, banned=(chat.tokenizer.turn_end,))
    yield one
    await engine.close()


def sampled_logprobs(reference: VisionReference, record: CompletionRecord, *, banned: tuple[int, ...]) -> torch.Tensor:
    shown = [reference.shown(RED if image.width == image.height else BLUE) for image in record.images]
    ids = record.sampled_ids.tolist()
    return reference.logprobs(record.prompt_ids.tolist(), ids, shown, banned=(*reference.media, *banned))


async def test_a_budget_ends_thoughts_about_images_and_its_tokens_are_not_trained(served: Served, thinking_dir: Path):
    rollout, first = cid(), show(data_uri(RED), data_uri(BLUE))
    reply = (await served.ask(rollout, messages=[first])).json()["choices"][0]["message"]
    assert reply["reasoning_content"]
    # The next turn's prompt holds no thoughts, sent back or not.
    again: list[dict[str, Any]] = [first, reply, show(data_uri(BLUE), text="And this?")]
    await served.ask(rollout, messages=again)
    one, two = await served.records(rollout)
    encode, decode = served.chat.tokenizer.encode, served.chat.tokenizer.decode
    forced = encode("\n</think>\n\n")
    reference, eos = VisionReference(thinking_dir), served.chat.tokenizer.turn_end
    for record in (one, two):
        assert decode(record.prompt_ids.tolist()).endswith("<|im_start|>assistant\n<think>\n")
        at = np.flatnonzero(~record.sampled)
        assert record.sampled_ids[at].tolist() == forced
        assert at.tolist() == list(range(BUDGET, BUDGET + len(forced)))
        assert record.sampled.sum() == MOST
        expected = sampled_logprobs(reference, record, banned=(eos,))
        difference = (torch.from_numpy(record.logprobs) - expected).abs()[torch.from_numpy(record.sampled)]
        assert difference.max() <= 1e-4
    assert decode(one.sampled_ids[:BUDGET].tolist()) not in decode(two.prompt_ids.tolist())
    assert [len(one.images), len(two.images)] == [2, 3]
    branches = build_branches([one, two])
    assert len(branches) == 2, "a turn without the thoughts before it is another sequence"
    for branch, record in zip(branches, (one, two), strict=True):
        assert branch.loss_mask.sum() == MOST
        assert np.array_equal(branch.loss_mask[len(record.prompt_ids) :], record.sampled)


@pytest.mark.parametrize("asked", [{"thinking_mode": "no_think"}, {"thinking_budget": 0}, {"reasoning_effort": "none"}])
async def test_a_call_that_wants_no_thoughts_has_them_closed_at_once(served: Served, asked: dict[str, Any]):
    got = await served.ask(None, model="tiny", messages=[show(data_uri(RED))], max_tokens=4, temperature=0, **asked)
    said = got.json()["choices"][0]["message"]
    assert not said.get("reasoning_content")
    assert got.json()["usage"]["completion_tokens_details"]["reasoning_tokens"] == 0
    assert got.json()["usage"]["completion_tokens_details"]["forced_tokens"] > 0
