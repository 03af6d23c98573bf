"""The one place that talks to a task app, and to the recorder of what its rollouts sampled."""

from __future__ import annotations

import itertools
import json
from typing import Any

import httpx

from synth.errors import Transient
from synth.http_guard import GuardPolicy, guarded_client
from synth.jobs.resolved import RolloutSettings
from synth.keys import internal_token
from synth.rollouts.collector import Request, Spot
from synth.rollouts.outcome import Reply
from synth.trajectories import CompletionRecord, records_from_bytes

#: One httpx client with 32 requests in flight costs four times the CPU of one with 8.
_IN_FLIGHT = 8
_MAX_BODY = 64 << 20


class TaskClient:
    """Plays rollouts at one job's task app."""

    def __init__(
        self, rollout: RolloutSettings, *, job_id: str, key: str | None, limit: int, guard: GuardPolicy
    ) -> None:
        """key: the environment key that the verifier found to work. limit: rollouts at once."""
        self._rollout = rollout
        self._job_id = job_id
        self._url = rollout.task_url.rstrip("/") + "/rollout"
        headers = {"X-API-Key": key, "X-API-Keys": key, "Authorization": f"Bearer {key}"} if key else {}
        count = -(-limit // _IN_FLIGHT)
        self._clients = [guarded_client(guard, headers=headers) for _ in range(count)]
        self._next = itertools.cycle(self._clients)

    @property
    def url(self) -> str:
        return self._url

    async def play(self, request: Request, spot: Spot, *, inference_url: str, cid: str) -> Reply:
        """One try of one rollout. A transport error is a `Reply` with status 0: the environment's fault."""
        body = self._body(request, spot, inference_url=inference_url, cid=cid)
        timeout = httpx.Timeout(self._rollout.rollout_timeout_s, connect=10)
        try:
            async with next(self._next).stream("POST", self._url, json=body, timeout=timeout) as reply:
                content = b""
                async for chunk in reply.aiter_bytes():
                    content += chunk
                    if len(content) > _MAX_BODY:
                        return Reply(0, f"the answer is larger than {_MAX_BODY >> 20} MiB")
        except httpx.TimeoutException:
            return Reply(0, f"no answer within {self._rollout.rollout_timeout_s:.0f} s")
        except httpx.HTTPError as error:
            return Reply(0, f"{type(error).__name__}: {error}")
        try:
            return Reply(reply.status_code, json.loads(content))
        except ValueError:
            return Reply(reply.status_code, content[:300].decode(errors="replace"))

    def _body(self, request: Request, spot: Spot, *, inference_url: str, cid: str) -> dict[str, Any]:
        r = self._rollout
        sampling = {"temperature": r.sampling.temperature, "top_p": 1.0, "max_tokens": r.sampling.max_tokens}
        policy = {
            **r.policy_config,
            **sampling,
            "model": self._job_id,
            "inference_url": inference_url,
            "trace_correlation_id": cid,
            "max_llm_calls": r.max_turns,
        }
        if r.sampling.thinking is not None:
            policy["thinking_mode"] = "think" if r.sampling.thinking else "no_think"
        if r.sampling.thinking_budget is not None:
            policy["thinking_budget"] = r.sampling.thinking_budget
        return {
            "run_id": spot.rollout_id,
            "mode": "rl" if request.mode == "train" else "eval",
            "env": {"env_name": r.env_name, "config": r.env_config, "seed": spot.seed},
            "policy": {"policy_name": r.policy_name, "config": policy},
            "ops": r.ops * r.max_turns,
            "record": {"trajectories": True, "return_trace": True, "trace_format": "structured"},
            "on_done": "terminate",
            "safety": {"max_ops": len(r.ops) * r.max_turns, "max_time_s": r.rollout_timeout_s},
            "training_session_id": self._job_id,
        }

    async def close(self) -> None:
        for client in self._clients:
            await client.aclose()


class RecorderClient:
    """Takes what a closed rollout credential recorded, from the inference replica that recorded it."""

    def __init__(self, cluster_secret: str, *, limit: int) -> None:
        headers = {"Authorization": f"Bearer {internal_token(cluster_secret)}"}
        count = -(-limit // _IN_FLIGHT)
        self._clients = [httpx.AsyncClient(headers=headers, timeout=30, trust_env=False) for _ in range(count)]
        self._next = itertools.cycle(self._clients)

    async def take(self, replica_url: str, cid: str) -> list[CompletionRecord]:
        """Close a cid and take its records, in the order of the calls. Raises `Transient` when they are lost."""
        try:
            reply = await next(self._next).post(f"{replica_url}/internal/rollouts/close", json={"cid": cid})
        except httpx.HTTPError as error:
            raise Transient(f"the recorder is away: {type(error).__name__}: {error}") from error
        if reply.status_code != 200:
            raise Transient(f"the recorder answered HTTP {reply.status_code}: {reply.text[:200]}")
        return records_from_bytes(reply.content)

    async def close(self) -> None:
        for client in self._clients:
            await client.aclose()
