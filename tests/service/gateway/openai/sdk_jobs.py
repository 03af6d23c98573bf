"""The openai SDK in the hands of a gateway's user, and what the other services tell of that user's jobs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import openai

from synth.bus.connection import Connection
from synth.bus.history.job_log import append_decided, read_job
from synth.bus.publish import Fence
from synth.bus.replay import replay
from synth.events import JobCreated, JobValidated, JobVerified, ModelRef
from synth.models import Registry
from synth.validator.validate import validate
from tests.service.gateway import job_histories
from tests.service.gateway.conftest import Client
from tests.service.gateway.wait import wait_until_shown

MODEL = "Qwen/Qwen3-0.6B"
APP = {"type": "task_app", "url": "http://127.0.0.1:8001", "env_name": "math", "policy_config": {"max_tokens": 12}}


def rl(**hyperparameters: Any) -> Any:
    return {"type": "reinforcement", "reinforcement": {"grader": APP, "hyperparameters": hyperparameters}}


def sft(**hyperparameters: Any) -> Any:
    return {"type": "supervised", "supervised": {"hyperparameters": hyperparameters}}


def sdk_of(user: Client, *, strict: bool = True) -> openai.AsyncOpenAI:
    """strict: every answer must be what the SDK's own types say."""
    url = f"{user.http.base_url}/v1"
    return openai.AsyncOpenAI(base_url=url, api_key=user.key, max_retries=0, _strict_response_validation=strict)


@dataclass
class Sdk:
    """The SDK in the hands of a user, and the bus by which the other services tell what they did."""

    client: openai.AsyncOpenAI
    user: Client
    bus_as: Any

    @property
    def jobs(self) -> Any:
        return self.client.fine_tuning.jobs

    async def file(self, body: bytes = b'{"messages": []}\n') -> str:
        return (await self.client.files.create(file=("rows.jsonl", body), purpose="fine-tune")).id

    async def supervised(self, **more: Any) -> Any:
        return await self.jobs.create(model=MODEL, training_file=await self.file(), **more)

    async def created(self, job: str) -> JobCreated:
        [event] = await replay(await self.bus_as("gateway"), [f"job.created.{self.user.org}.{job}"])
        assert isinstance(event.event, JobCreated)
        return event.event

    async def validated(self, job: str) -> None:
        """As the validator decides."""
        verdict = validate(await self.created(job), Registry())
        assert isinstance(verdict, JobValidated), verdict
        await append_decided(await self.bus_as("validator"), self.user.org, job, lambda _: verdict)

    async def started(self, job: str) -> tuple[Connection, Fence]:
        """Validated, verified and taken by a trainer."""
        await self.validated(job)
        verified = JobVerified(source=ModelRef(id=MODEL, path="p"))
        await append_decided(await self.bus_as("verifier"), self.user.org, job, lambda _: verified)
        trainer = await self.bus_as("trainer")
        _, fence = await job_histories.start_attempt(trainer, self.user.org, job, worker="w")
        assert fence is not None
        return trainer, fence

    async def shown(self, job: str) -> Any:
        """The job, once the gateway shows all that is in its log."""
        history = await read_job(await self.bus_as("gateway"), self.user.org, job)
        await self.wait_until_shown(history.last_seq)
        return await self.jobs.retrieve(job)

    async def wait_until_shown(self, seq: int) -> None:
        await wait_until_shown(self.user, seq)
