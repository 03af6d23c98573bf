"""The player of rollouts that a grader scores: one reply to a row's messages, and its score."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec
from prometheus_client import Counter

from synth.blobs import BlobMissing
from synth.errors import Problem, Transient
from synth.graders.grade import GraderFailed, grade, run_python
from synth.graders.python.pool import PythonPool
from synth.graders.schema import Grader, parse_grader
from synth.graders.template import Sample
from synth.methods.rollouts import GradedRows, RolloutSettings
from synth.outbound.answer_memory import AnswerRoom
from synth.rollouts.clients.prompt_rows import PromptRows
from synth.rollouts.collection.types import CollectionBlocked, CollectRequest, EnvironmentBroken, RolloutSpec
from synth.rollouts.rewards.scoring import TaskAppReply
from synth.taskapp.llm import ChatClients, InferenceUnavailable, PolicyFailure

FAILED = Counter("synth_rollouts_graders_failed", "Replies that a grader could not grade, by the cause", ["cause"])


class GradedPlayer:
    """A player that requests one reply per rollout from the model and grades it, without a task app."""

    def __init__(
        self,
        graded: GradedRows,
        rollout_settings: RolloutSettings,
        rows: Mapping[str, PromptRows],
        *,
        job_id: str,
        max_characters: int,
        answer_within_s: float,
        python: PythonPool | None = None,
    ) -> None:
        """rows: by the file that `GradedRows.file_of` names. max_characters: of the texts of one comparison.

        answer_within_s: the longest that a rollout may take, including the time that it waits for its policy. python:
        the pool that runs the `python` parts of the grader; None if it has no such part.
        """
        self._python = python
        self._graded = graded
        self._grader: Grader = parse_grader(graded.grader)
        self._rollout_settings = rollout_settings
        self._rows = rows
        self._job_id = job_id
        self._max_characters = max_characters
        self._answer_within_s = answer_within_s
        self._chats = ChatClients(max_in_flight=rollout_settings.max_concurrent_rollouts)

    @property
    def url(self) -> str:
        return "grader"

    async def play(
        self, request: CollectRequest, spec: RolloutSpec, *, inference_url: str, cid: str, room: AnswerRoom
    ) -> TaskAppReply:
        """Run one try of one rollout.

        Raises `CollectionBlocked` if a row or the grader is at fault. Sampling another reply in place of one that
        cannot be graded would train only on the replies that can be graded.
        """
        file = self._graded.file_of(request.mode)
        try:
            row = await self._rows[file].row(spec.seed)
        except BlobMissing as missing:
            raise _blocked(f"the {file.replace('_', ' ')} is not there any more", "upload it again") from missing
        # The credential names the job, whose settings determine how the reply is sampled.
        body: dict[str, Any] = {"model": self._job_id, "messages": row["messages"]}
        if row.get("tools"):
            body["tools"] = row["tools"]
        try:
            reply = await self._chats.chat(inference_url, body, within=self._answer_within_s)
        except PolicyFailure as failure:
            details = {"policy_failure": {"code": failure.code, "message": str(failure)}}
            return TaskAppReply(200, {"metrics": {"details": details}, "aborted": True})
        except InferenceUnavailable as unavailable:
            text = str(unavailable).replace(cid, "[secret]")
            return _failed(text, "a reply of the model", "look at the inference service's log")
        try:
            sample = Sample(reply.content, reply.message.get("tool_calls") or [])
            ran = {} if self._python is None else await run_python(self._grader, row, sample, self._python)
            return await asyncio.to_thread(self._grade, row, sample, ran)
        except GraderFailed as failed:
            FAILED.labels(cause=failed.cause.__name__).inc()
            raise _blocked(f"row {spec.seed}: {failed}", "mend the grader, or the row") from failed
        except Transient as error:
            return _failed(str(error), "a score", "look at the rollouts service's log")

    def _grade(self, row: dict[str, Any], sample: Sample, ran: Mapping[str, float]) -> TaskAppReply:
        result = grade(self._grader, row, sample, max_characters=self._max_characters, ran=ran)
        told: dict[str, Any] = {"score": result.score, "parts": result.parts, "lacking": result.lacking}
        if result.asked:
            told["asked"] = msgspec.to_builtins(result.asked)
        # The scores of models are not known yet: the reward is computed once the judges have answered.
        return TaskAppReply(200, {"metrics": {"mean_return": result.score or 0.0, "details": {"grader": told}}})

    async def aclose(self) -> None:
        await self._chats.close()


def _blocked(what: str, fix: str) -> CollectionBlocked:
    problem = Problem(what=what, expected="a score", fix=fix, where="grader")
    return CollectionBlocked(EnvironmentBroken(problem, "grader_failed"))


def _failed(what: str, expected: str, fix: str) -> TaskAppReply:
    return TaskAppReply(502, what, problem=Problem(what=what, expected=expected, fix=fix, where="grader"))
