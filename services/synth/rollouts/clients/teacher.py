"""The only client of a job's teacher: it has one replica score the tokens of one sequence."""

from __future__ import annotations

import httpx
import msgspec
import numpy as np

from synth.bus.kv.replicas import Replica
from synth.errors import Problem, Transient, UserError
from synth.outbound.aiohttp_transport import AiohttpTransport
from synth.outbound.service_calls import CallSigner
from synth.trajectories.packing import Float32, Int32


class TeacherClient:
    """A client of the inference replicas that serve a job; they have its teacher loaded."""

    def __init__(
        self, calls: CallSigner, *, timeout_s: float, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        """timeout_s: the limit of scoring one sequence."""
        self._calls = calls
        self._http = httpx.AsyncClient(timeout=timeout_s, trust_env=False, transport=transport or AiohttpTransport())

    async def score(self, replica: Replica, job_id: str, tokens: Int32) -> Float32:
        """Return float32 [T]: the teacher's log-probability of each token given the earlier ones (nats, temperature 1).

        It is NaN for the first token, and for the last one if the tokens fill the teacher's context.
        Raises `UserError` if the teacher refuses the tokens, `Transient` if no answer arrives.
        """
        requested = {"job_id": job_id, "token_ids": tokens.tolist()}
        try:
            reply = await self._http.post(
                f"{replica.url}/internal/teacher/score",
                content=msgspec.json.encode(requested),
                headers={"authorization": self._calls.authorization(replica.recorder, job_id), "x-synth-job": job_id},
            )
        except httpx.HTTPError as error:
            raise Transient(f"the teacher is away: {type(error).__name__}: {error}") from error
        if reply.status_code in (400, 413):
            raise UserError(_problem(reply))
        if reply.status_code != 200:
            raise Transient(f"the teacher answered HTTP {reply.status_code}: {reply.text[:200]}")
        try:
            scored = msgspec.json.decode(reply.content, type=list[float | None])
        except msgspec.DecodeError as error:
            raise Transient(f"the teacher's answer cannot be read: {error}") from error
        if len(scored) != len(tokens) - 1:
            raise Transient(f"the teacher scored {len(scored)} of {len(tokens) - 1} tokens")
        return np.asarray([np.nan, *(np.nan if s is None else s for s in scored)], dtype=np.float32)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()


class _Error(msgspec.Struct):
    problems: list[Problem]


class _Refusal(msgspec.Struct):
    error: _Error


def _problem(reply: httpx.Response) -> Problem:
    """Return the problem in a replica's answer, or one with the answer's text if it has another form."""
    try:
        return msgspec.json.decode(reply.content, type=_Refusal).error.problems[0]
    except (msgspec.DecodeError, IndexError):
        return Problem(what=f"the teacher answered HTTP {reply.status_code}: {reply.text[:200]}")
