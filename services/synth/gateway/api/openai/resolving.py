"""The translation of fine-tuning requests to jobs of our schema, in a worker process if it may take long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from synth.api.fine_tuning.request import FineTuningRequest
from synth.api.fine_tuning.translate import translate_request
from synth.blobs import BlobMissing
from synth.errors import NewerVersion, Problem, UserError
from synth.gateway.api.openai.places import place_in_request
from synth.gateway.deps import Gateway
from synth.gateway.read_model.projection import JobRow
from synth.gateway.read_model.store import JobTexts
from synth.graders.schema import names_python, parse_grader
from synth.jobs.lifecycle import State
from synth.jobs.parse.toml import read_data
from synth.jobs.parse.validate import Kind
from synth.jobs.resolve.job import Overrides, resolve_job
from synth.methods.eval import EvalJob
from synth.methods.job import Job, ResolvedJob, TrainedJob, job_from_data
from synth.models import Registry
from synth.runtime.off_loop import TooMuchWork

#: The name of the configuration of a job that was created through this API.
CONFIG_NAME = "fine_tuning.job"
_GRADER = "method.reinforcement.grader"


class ReadRequest(NamedTuple):
    """A request as a job. config: in our schema, as JSON. problems: the problems that the validator would find."""

    kind: Kind
    config: bytes
    problems: list[Problem]


async def check_grader(gateway: Gateway, org: str, body: FineTuningRequest, *, size: int) -> list[Problem]:
    """Return the problems of a request's grader. size: bytes of the request."""
    python = gateway.settings.python_graders
    try:
        await _work(gateway, org, _read_grader, _grader(body), python, size=_cost(body, size), task="read the grader")
    except UserError as error:
        return error.problems
    return []


async def read_request(
    gateway: Gateway, org: str, body: FineTuningRequest, rows: dict[str, int], *, size: int
) -> ReadRequest:
    """Translate a request, and find every problem that the validator would find, by the fields of the request.

    rows: the number of rows of a graded job's files, by the fields that name them. size: bytes of the request.
    Raises `UserError`.
    """
    settings = gateway.settings
    rules = (rows, settings.judge_provider or "synth", settings.python_graders, gateway.registry)
    return await _work(gateway, org, _read_request, body, *rules, size=_cost(body, size), task="read the request")


async def resolve_rows(gateway: Gateway, org: str, rows: Sequence[JobRow]) -> list[TrainedJob | None]:
    """Return each job with every default applied: as it was validated, or before validation, as it will be.

    None: a job of another version, one that is about to be rejected, one that another API created, or one that takes
    too long to resolve, which a list shows without its hyperparameters.
    """
    jobs: list[TrainedJob | None] = []
    waiting: dict[int, str] = {}
    for i, row in enumerate(rows):
        waits = row.job.state is State.CREATED and row.job.name == CONFIG_NAME
        try:
            texts = await gateway.texts(row.job.id) if waits else gateway.read_model.texts(row.job.id)
        except BlobMissing:
            texts = None  # the validator rejects it, or it was deleted just now
        jobs.append(_validated(texts))
        if texts is not None and waits:
            waiting[i] = texts.config
    if waiting:
        configs = [*waiting.values()]
        # Each takes about 15 ms; one with code can take any time.
        long = len(configs) > 1 or '"python"' in configs[0]
        task, size = "resolve the jobs", None if long else len(configs[0])
        try:
            resolved = await _work(gateway, org, _resolve_configs, configs, gateway.registry, size=size, task=task)
        except TooMuchWork:
            return jobs
        for i, job in zip(waiting, resolved, strict=True):
            jobs[i] = job
    return jobs


async def _work(gateway: Gateway, org: str, function: Any, *args: Any, size: int | None, task: str) -> Any:
    return await gateway.service.off_loop.process(function, *args, org=org, size=size, task=task)


def _cost(body: FineTuningRequest, size: int) -> int | None:
    """Return the size of a request, None if it has code: parsing code takes seconds for each megabyte."""
    return None if names_python(_grader(body)) else size


def _grader(body: FineTuningRequest) -> Any:
    reinforcement = body.method.reinforcement if body.method else None
    return reinforcement.grader if reinforcement else None


def _read_grader(grader: Any, python: bool) -> None:
    parse_grader(grader, where=_GRADER, python=python)


def _read_request(
    body: FineTuningRequest, rows: Mapping[str, int], judge_provider: str, python: bool, registry: Registry
) -> ReadRequest:
    kind, config = translate_request(body, rows, judge_provider=judge_provider)
    problems: list[Problem] = []
    try:
        _resolve(config, registry, kind=kind, python=python, allow_experimental=body.allow_experimental)
    except UserError as error:
        problems = [place_in_request(problem, body) for problem in error.problems]
    return ReadRequest(kind, msgspec.json.encode(config), problems)


def _resolve_configs(configs: list[str], registry: Registry) -> list[TrainedJob | None]:
    jobs: list[TrainedJob | None] = []
    for config in configs:
        try:
            job = _resolve(msgspec.json.decode(config), registry).job
        except (msgspec.DecodeError, UserError):
            job = None  # it is about to be rejected
        jobs.append(_trained(job))
    return jobs


def _resolve(
    config: dict[str, Any],
    registry: Registry,
    *,
    kind: Kind | None = None,
    python: bool = True,
    allow_experimental: bool = True,
) -> ResolvedJob:
    return resolve_job(
        read_data(config, name=CONFIG_NAME),
        overrides=Overrides(allow_experimental=allow_experimental),
        registry=registry,
        kind=kind,
        python_graders=python,
    )


def _validated(texts: JobTexts | None) -> TrainedJob | None:
    if texts is None or texts.validated is None:
        return None
    try:
        job = job_from_data(texts.validated["job"])
    except (msgspec.DecodeError, UserError, NewerVersion):
        return None  # another version's job
    return _trained(job)


def _trained(job: Job | None) -> TrainedJob | None:
    return None if isinstance(job, EvalJob) else job
