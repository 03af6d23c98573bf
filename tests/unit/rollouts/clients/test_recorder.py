"""Taking recordings: many rollouts in one request, and each with a fate of its own."""

from __future__ import annotations

import asyncio

import httpx
import msgspec
import numpy as np
import pytest

from synth.bus.kv.replicas import Replica
from synth.errors import Transient
from synth.rollouts.clients.recorder import RecorderClient
from synth.service_secrets import Purpose
from synth.trajectories import ClosedRollout, CompletionRecord, closed_to_bytes, records_to_bytes
from tests.keyrings import calls_of, verifier_of

REPLICA = Replica(id="r", boot="1", url="http://replica", pool="default", models=[])
VERIFIER = verifier_of(REPLICA.recorder)


def sampled(cid: str) -> bytes:
    """Records that tell whose they are."""
    ids = np.frombuffer(cid.encode(), np.uint8).astype(np.int32)
    n = len(ids)
    record = CompletionRecord(
        ids, ids, np.zeros(n, np.float32), np.zeros(n, np.int32), np.ones(n, np.bool_), finish_reason="stop"
    )
    return records_to_bytes([record])


class Closing:
    """Closes rollouts, counting requests; a cid that begins with "gone" is refused."""

    def __init__(self) -> None:
        self.requests: list[list[str]] = []
        self.answer: httpx.Response | None = None

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        VERIFIER.verify(request.headers["authorization"], "job_1", of=(Purpose.ROLLOUTS_CALLS,))
        assert request.headers["x-synth-job"] == "job_1"
        cids: list[str] = msgspec.json.decode(request.content)["cids"]
        self.requests.append(cids)
        if self.answer is not None:
            return self.answer
        closed = [ClosedRollout(refused="closed") if c.startswith("gone") else ClosedRollout(sampled(c)) for c in cids]
        return httpx.Response(200, content=closed_to_bytes(closed))


@pytest.fixture
def replica() -> Closing:
    return Closing()


@pytest.fixture
def client(replica: Closing) -> RecorderClient:
    return RecorderClient(calls_of("rollouts"), "job_1", timeout_s=30, transport=httpx.MockTransport(replica))


async def test_rollouts_that_end_together_are_closed_by_one_request(client: RecorderClient, replica: Closing) -> None:
    cids = [f"trace_{i}" for i in range(50)]
    taken = await asyncio.gather(*(client.close_rollout(REPLICA, cid) for cid in cids))
    assert [bytes(r[0].sampled_ids.astype(np.uint8)).decode() for r in taken] == cids
    assert replica.requests == [cids]


async def test_a_flock_is_split_so_that_an_answer_stays_small(client: RecorderClient, replica: Closing) -> None:
    await asyncio.gather(*(client.close_rollout(REPLICA, f"trace_{i}") for i in range(150)))
    assert [len(r) for r in replica.requests] == [64, 64, 22]


async def test_a_refused_credential_costs_only_its_own_rollout(client: RecorderClient) -> None:
    kept, gone = await asyncio.gather(
        client.close_rollout(REPLICA, "trace_1"),
        client.close_rollout(REPLICA, "gone_1"),
        return_exceptions=True,
    )
    assert isinstance(kept, list)
    assert isinstance(gone, Transient)


@pytest.mark.parametrize(
    "answer",
    [httpx.Response(503), httpx.Response(200, content=b"{}"), httpx.Response(200, content=closed_to_bytes([]))],
    ids=["unavailable", "garbage", "too few"],
)
async def test_an_answer_that_cannot_be_used_loses_the_recordings_and_says_so(
    client: RecorderClient, replica: Closing, answer: httpx.Response
) -> None:
    replica.answer = answer
    with pytest.raises(Transient, match="recorder"):
        await client.close_rollout(REPLICA, "trace_1")
    replica.answer = None
    assert len(await client.close_rollout(REPLICA, "trace_1")) == 1
