"""Clients of the Responses API play rollouts by their defaults; what was recorded is what the model gives again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import torch

from synth.inference.api.requests import JobSampling
from synth.inference.engines.settings import EngineSettings
from synth.inference.engines.transformers import TransformersEngine
from synth.trajectories import CompletionRecord, records_from_bytes
from tests.clients.attached import agent_of
from tests.clients.conftest import venv_of
from tests.unit.inference.api.test_openai_sdk import listening
from tests.unit.inference.memorised_replies import teach
from tests.unit.inference.one_model_service import credential
from tests.unit.inference.tiny_model import plain_model, save_tiny_model

pytestmark = pytest.mark.timeout(600)

CLIENTS = (("openai-1", "openai"), ("openai", "openai"), ("agents", "agents"), ("agents", "pydantic"))


@pytest.fixture(scope="module")
async def model(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[str, Any, Any]]:
    """Where a policy is served, its recorder, and the model that it is."""
    path: Path = tmp_path_factory.mktemp("tiny-qwen3")
    save_tiny_model(path)
    teach(path)
    engine = await TransformersEngine.load(path, settings=EngineSettings(device="cpu", seed=0))
    sampling = JobSampling(max_tokens=400, constrain_tools=True)
    async with listening(engine, path, sampling) as (url, recorder):
        yield url, recorder, plain_model(path).eval()
    await engine.close()


@pytest.mark.parametrize(("venv", "client"), CLIENTS, ids=[f"{venv}/{client}" for venv, client in CLIENTS])
async def test_a_client_reads_plain_streamed_tool_and_structured_replies_and_they_are_recorded_exactly(
    model: tuple[str, Any, Any], venv: str, client: str
):
    url, recorder, plain = model
    cid = credential(f"job_1_t0_{CLIENTS.index((venv, client))}")
    with agent_of(venv_of(venv), "responses.py") as agent:
        got = await asyncio.to_thread(agent.ask, client=client, base_url=f"{url}/v1", api_key=cid)
    assert all(isinstance(text, str) for text in (*got["plain"], got["streamed"], got["tool"][1]))
    assert got["tool"][0].keys() == got["structured"].keys() == {"even"}
    records = records_from_bytes(recorder.close(cid))
    assert len(records) == 6
    assert max(error_of(plain, record) for record in records) < 1e-4
    # Each conversation goes on from the sampled tokens themselves.
    for first, second in ((records[0], records[1]), (records[3], records[4])):
        whole = [*first.prompt_ids.tolist(), *first.sampled_ids.tolist()]
        assert second.prompt_ids.tolist()[: len(whole)] == whole


def error_of(plain: Any, record: CompletionRecord) -> float:
    """The largest difference of a recorded log-probability from the one that the model gives to the same tokens."""
    ids = torch.tensor([[*record.prompt_ids.tolist(), *record.sampled_ids.tolist()]])
    with torch.no_grad():
        logits_LV = plain(ids).logits[0, len(record.prompt_ids) - 1 : -1]
    allowed_LV = torch.ones_like(logits_LV, dtype=torch.bool)
    for position, index in enumerate(() if record.masks is None else record.masks.index.tolist()):
        if record.masks is not None and index >= 0:
            tokens = record.masks.sets[index]
            allowed_LV[position] = tokens.excluded
            allowed_LV[position, torch.from_numpy(tokens.ids).long()] = not tokens.excluded
    logprobs_LV = logits_LV.float().masked_fill(~allowed_LV, -torch.inf).log_softmax(-1)
    again = logprobs_LV.gather(1, torch.tensor(record.sampled_ids.tolist())[:, None])[:, 0]
    sampled = torch.from_numpy(record.sampled)
    return (again - torch.from_numpy(record.logprobs))[sampled].abs().max().item() if sampled.any() else 0.0
