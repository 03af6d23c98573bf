"""The only client of task apps."""

from __future__ import annotations

import json
from typing import Any

import httpx

from synth.base_url import under
from synth.methods.rollouts import RolloutSettings
from synth.outbound.aiohttp_transport import open_post
from synth.outbound.answer_memory import AnswerMemoryFull, AnswerRoom
from synth.outbound.failures import reason_of
from synth.outbound.http_guard import GuardPolicy, guarded_transport
from synth.outbound.reply_body import ReplyTooLarge, ReplyUndecodable, read_body
from synth.rollouts.collection.types import CollectRequest, RolloutSpec
from synth.rollouts.rewards.scoring import TaskAppReply, UnreadAnswer
from synth.runtime.off_loop import INLINE_BYTES


class TaskAppClient:
    """A client that plays rollouts at one job's task app."""

    def __init__(
        self,
        rollout_settings: RolloutSettings,
        *,
        job_id: str,
        key: str | None,
        limit: int,
        max_answer_bytes: int,
        max_answer_depth: int,
        answer_within_s: float,
        guard: GuardPolicy,
    ) -> None:
        """key: the environment key that the verifier found to work. limit: the most rollouts at once.

        max_answer_bytes, max_answer_depth: limits of one answer. answer_within_s: the longest that a rollout may take,
        including the time that it waits for its policy; an app need not go on for longer.
        """
        self._rollout_settings = rollout_settings
        self._job_id = job_id
        self._url = under(rollout_settings.task_url, "/rollout")
        self._key = key
        self._max_answer_bytes = max_answer_bytes
        self._max_answer_depth = max_answer_depth
        self._answer_within_s = answer_within_s
        # Compression costs more here than it saves. The answer of an app that compresses anyway is still read.
        self._headers = {"Accept-Encoding": "identity", "Content-Type": "application/json"}
        if key:
            self._headers |= {"X-API-Key": key, "X-API-Keys": key, "Authorization": f"Bearer {key}"}
        self._transport = guarded_transport(guard, max_connections=limit)

    @property
    def url(self) -> str:
        return self._url

    async def play(
        self, request: CollectRequest, spec: RolloutSpec, *, inference_url: str, cid: str, room: AnswerRoom
    ) -> TaskAppReply:
        """Run one try of one rollout. A transport error is a reply of status 0: the environment's fault."""
        body = json.dumps(self._body(request, spec, inference_url=inference_url, cid=cid), ensure_ascii=False).encode()
        try:
            async with open_post(self._transport, self._url, body, headers=self._headers, timeout=None) as reply:
                content = await read_body(reply, self._max_answer_bytes, room)
        except ReplyTooLarge as error:
            return TaskAppReply(0, f"{error} (SYNTH_MAX_ANSWER_BYTES)")
        except ReplyUndecodable as error:
            return TaskAppReply(0, str(error))
        except AnswerMemoryFull as error:
            return TaskAppReply(0, str(error), crowded=True)
        except httpx.HTTPError as error:
            return TaskAppReply(0, f"the call failed: {reason_of(error)}")
        unread = UnreadAnswer(content, (cid, *([self._key] if self._key else [])), self._max_answer_depth)
        answered = TaskAppReply(reply.status_code, None, unread=unread)
        return answered if answered.size > INLINE_BYTES else answered.read()

    def _body(self, request: CollectRequest, spec: RolloutSpec, *, inference_url: str, cid: str) -> dict[str, Any]:
        r = self._rollout_settings
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
        config = r.env_config if request.mode == "train" else r.env_config | r.evaluation_env_config
        env: dict[str, Any] = {"config": config, "seed": spec.seed}
        if r.env_name is not None:
            env["env_name"] = r.env_name
        return {
            "run_id": spec.rollout_id,
            "mode": "rl" if request.mode == "train" else "eval",
            "env": env,
            "policy": {"policy_name": r.policy_name, "config": policy},
            "ops": r.ops * r.max_turns,
            "record": {"trajectories": True, "return_trace": True, "trace_format": "structured"},
            "on_done": "terminate",
            "safety": {"max_ops": len(r.ops) * r.max_turns, "max_time_s": self._answer_within_s},
            "training_session_id": self._job_id,
        }

    async def aclose(self) -> None:
        await self._transport.aclose()
