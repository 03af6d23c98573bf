"""The check of a job before it is submitted, by the services that would accept or reject it."""

from __future__ import annotations

from synth.api.schemas import JobCheck
from synth.bus.rpc import (
    ANSWER_WITHIN_S,
    CHECK,
    VALIDATE,
    CheckJob,
    CheckVerdict,
    ValidateJob,
    ValidationVerdict,
    ask,
)
from synth.events import JobCreated
from synth.gateway.deps import Gateway
from synth.ids import OrgId


async def check_job(gateway: Gateway, org: OrgId, created: JobCreated) -> JobCheck:
    """Return every problem of this submission, except its task app's. Raises `Transient` if no service answers."""
    submission = ValidateJob(org=org, created=created)
    validated = await ask(gateway.bus, VALIDATE, submission, ValidationVerdict, within=ANSWER_WITHIN_S)
    if validated.job is None:
        return JobCheck(problems=validated.problems)
    result = await ask(gateway.bus, CHECK, CheckJob(org=org, job=validated.job), CheckVerdict, within=ANSWER_WITHIN_S)
    return JobCheck(
        problems=result.problems,
        warnings=validated.warnings,
        resolved=validated.job,
        unchecked=result.unchecked,
        rendering=result.rendering,
    )
