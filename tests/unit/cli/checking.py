"""A cluster that checks jobs with the validator's own code, for commands that submit one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs

import msgspec
import pytest
from fastapi.security import HTTPAuthorizationCredentials

from synth.api.schemas import JobCheck
from synth.errors import UserError
from synth.events import JobCreated, JobRejected
from synth.gateway.auth import authenticate
from synth.gateway.errors import ApiError, error_response, not_found
from synth.gateway.passage import PASSAGE
from synth.models import Registry
from synth.validator.validate import validate
from tests.unit.cli.backend import Answer, Backend, Request, job_body

RL = """\
[services]
task_url = "{app}"

[model]
base = "tiny-qwen3"

[rollout]
env_name = "guess"

[rollout.policy_config]
max_tokens = 12

[training]
iterations_per_epoch = 3
batch_size = 4
group_size = 2

[data]
seeds = "0-15"
"""
SFT = '[job]\nmodel = "tiny-qwen3"\ndata = "rows.jsonl"\n'
ROW = '{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]}\n'
#: The cluster's only key, and the job that it has, with what the job measured.
KEY = "synth_live_key"
JOB = "job_0000000000000001"
POINTS = {
    name: {"name": name, "step": 1, "value": 0.5, "time": "2026-01-01T00:00:00Z"}
    for name in ("loss", "eval.reward_mean", "reward_mean")
}
#: Runs a command in this process; returns its exit code, output and messages.
Run = Callable[..., tuple[int, str, str]]


class Cluster:
    """A backend that checks jobs with the validator's own code and its models, and a task app at the same address.

    It has one key and one job. looks: what it says of a task app. answers: in place of its own, by the path.
    """

    def __init__(self, models: Path) -> None:
        self.registry = Registry(models)
        self.looks = {"any_ok": False, "detail": "it does not answer"}
        self.answers: dict[str, Answer] = {
            "/health": Answer(body={"healthy": True}),
            "/task_info": Answer(body={"taskset": {}, "env_names": ["guess"]}),
            "/api/rl/verify_task_app": Answer(body=self.looks),
            "/api/jobs": Answer(201, job_body()),
        }

    def __call__(self, request: Request) -> Answer:
        path, _, query = request.path.partition("?")
        if path in self.answers:
            return self.answers[path]
        if request.headers.get("Authorization") != f"Bearer {KEY}":
            return refused(asyncio.run(_refusal(request.headers["Authorization"].removeprefix("Bearer "))))
        if path == "/api/jobs/check":
            return Answer(body=msgspec.to_builtins(self._check(json.loads(request.body))))
        if path == f"/api/jobs/{JOB}/metrics":
            names = parse_qs(query).get("name", POINTS)
            return Answer(body={"points": [POINTS[name] for name in names if name in POINTS], "more": False})
        return refused(not_found("job", path.rpartition("/")[2]))

    def _check(self, body: dict[str, Any]) -> JobCheck:
        verdict = validate(JobCreated(**body, body_sha256=""), self.registry, uploaded=False)
        if isinstance(verdict, JobRejected):
            return JobCheck(problems=verdict.problems)
        try:
            self.registry.weights(self.registry.find(verdict.job["model"]))
        except UserError as error:
            return JobCheck(problems=error.problems, resolved=verdict.job)
        return JobCheck(resolved=verdict.job)


def sent(backend: Backend) -> list[str]:
    """What was sent for a job. The rest is looks."""
    return [request.path for request in backend.requests if request.path in ("/api/jobs", "/api/files")]


def refused(error: ApiError) -> Answer:
    """The gateway's own response of an error."""
    return Answer(error.status, json.loads(bytes(error_response(error).body)))


class _NoKeys:
    async def find(self, key: str) -> None:
        return None


async def _refusal(key: str) -> ApiError:
    """What the gateway answers to a key that it does not know."""
    gateway = SimpleNamespace(keys=_NoKeys())
    request: Any = SimpleNamespace(
        scope={PASSAGE: SimpleNamespace(caller=None)}, app=SimpleNamespace(state=SimpleNamespace(gateway=gateway))
    )
    with pytest.raises(ApiError) as refusal:
        await authenticate(request, HTTPAuthorizationCredentials(scheme="Bearer", credentials=key))
    return refusal.value
