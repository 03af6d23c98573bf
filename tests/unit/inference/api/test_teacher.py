"""A served teacher: what it says of tokens, over HTTP, is what a plain forward gives, and what it refuses to score."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest

from synth.errors import Permanent, Transient, UserError
from synth.inference.api.app import build_api
from synth.inference.chat.prompts import ChatFormat
from synth.inference.engines.transformers import TransformersEngine
from synth.inference.recording.recorder import Recorder
from synth.inference.serving.router import check_same_tokenizer
from synth.inference.tokenizers import load_tokenizer
from synth.keys import read_cid
from synth.local.tiny_models.qwen3 import make_tiny_qwen3
from synth.rollouts.clients.teacher import TeacherClient
from synth.runtime.off_loop import OffLoop
from tests.keyrings import calls_of
from tests.unit.inference.one_model_service import (
    CREDENTIALS,
    EARLIER,
    RECEIVER,
    VERIFIER,
    OneModel,
    authenticate,
    read_images,
)
from tests.unit.inference.tiny_model import plain_logprobs

JOB = "job_taught"


@pytest.fixture
async def teacher(engine: TransformersEngine, model_dir: Path) -> AsyncIterator[TeacherClient]:
    app = build_api(
        OneModel(engine, ChatFormat(load_tokenizer(model_dir))),
        Recorder(lambda text: read_cid(text, CREDENTIALS, now=0)),
        authenticate,
        calls=VERIFIER,
        images=read_images(),
        off_loop=OffLoop(),
    )
    client = TeacherClient(calls_of("rollouts"), timeout_s=20, transport=httpx.ASGITransport(app))
    yield client
    await client.aclose()


def ids(count: int) -> np.ndarray:
    return np.asarray([5 + i % 40 for i in range(count)], dtype=np.int32)


async def test_each_token_has_the_log_probability_of_a_plain_forward(teacher: TeacherClient, reference: Any):
    tokens = ids(50)
    said = await teacher.score(RECEIVER, JOB, tokens)
    plain = plain_logprobs(reference, [int(tokens[0])], tokens[1:].tolist(), ban_end=False)
    assert np.isnan(said[0])
    assert said.dtype == np.float32
    assert np.abs(said[1:] - plain.numpy()).max() < 1e-4


async def test_tokens_that_fill_the_context_are_scored_but_for_the_last(
    teacher: TeacherClient, engine: TransformersEngine
):
    said = await teacher.score(RECEIVER, JOB, ids(engine.max_context))
    assert np.flatnonzero(np.isnan(said)).tolist() == [0, engine.max_context - 1]
    with pytest.raises(UserError, match=f"has {engine.max_context + 1} tokens"):
        await teacher.score(RECEIVER, JOB, ids(engine.max_context + 1))


async def test_a_token_that_the_teacher_does_not_know_is_refused(teacher: TeacherClient, engine: TransformersEngine):
    tokens = np.append(ids(3), np.int32(engine.vocabulary))
    with pytest.raises(UserError, match=f"token {engine.vocabulary} is none of them"):
        await teacher.score(RECEIVER, JOB, tokens)


async def test_a_teacher_that_gives_no_number_is_refused(
    teacher: TeacherClient, engine: TransformersEngine, monkeypatch: pytest.MonkeyPatch
):
    async def broken(token_ids: list[int]) -> list[float]:
        return [-1.0, float("-inf"), -1.0]

    monkeypatch.setattr(engine, "score", broken)
    with pytest.raises(UserError, match=r"token 2 \(id 7\) the log-probability -inf"):
        await teacher.score(RECEIVER, JOB, ids(4))


async def test_a_job_that_is_not_served_here_may_be_soon(teacher: TeacherClient):
    with pytest.raises(Transient, match="is not served here"):
        await teacher.score(RECEIVER, "job_other", ids(4))


async def test_only_a_service_of_the_cluster_may_ask_also_one_from_before_a_rotation(teacher: TeacherClient):
    transport: Any = teacher._http._transport
    stranger = TeacherClient(calls_of("rollouts", "another cluster secret"), timeout_s=5, transport=transport)
    with pytest.raises(Transient, match="401"):
        await stranger.score(RECEIVER, JOB, ids(4))
    judge = TeacherClient(calls_of("judge"), timeout_s=5, transport=transport)
    with pytest.raises(Transient, match="not a service of this cluster that may make this call"):
        await judge.score(RECEIVER, JOB, ids(4))
    other = msgspec.structs.replace(RECEIVER, boot="2")
    with pytest.raises(Transient, match="for another receiver, organisation or job"):
        await teacher.score(other, JOB, ids(4))
    before = TeacherClient(calls_of("rollouts", EARLIER), timeout_s=20, transport=transport)
    assert len(await before.score(RECEIVER, JOB, ids(4))) == 4


def test_models_of_one_tokenizer_may_teach_each_other_and_others_are_refused_by_token(model_dir: Path, tmp_path: Path):
    check_same_tokenizer(model_dir, model_dir, teacher_id="same")
    other = make_tiny_qwen3(tmp_path / "other").path
    with pytest.raises(Permanent, match=r"'other' has another tokenizer than the policy: token \d+ is '.+' to the pol"):
        check_same_tokenizer(model_dir, other, teacher_id="other")
    with pytest.raises(Permanent, match=r"has no tokenizer\.json"):
        check_same_tokenizer(model_dir, tmp_path, teacher_id="none")
