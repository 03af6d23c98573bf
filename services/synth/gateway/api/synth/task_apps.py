"""The route that checks a task app before a job is submitted.

The verifier does the work, because it may call addresses that users name.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.responses import Response

from synth.api.limits import MAX_URL
from synth.base_url import base_url_fault
from synth.bus.rpc import ANSWER_WITHIN_S, KEY_REFUSED_STATUSES, VERIFY, TaskAppReport, VerifyTaskApp, ask
from synth.errors import Problem
from synth.gateway.api.openapi import json_response
from synth.gateway.auth import CurrentKey
from synth.gateway.deps import GatewayDep
from synth.gateway.errors import ApiError
from synth.gateway.passage import PassageDep
from synth.outbound.http_guard import origin_of

router = APIRouter(tags=["jobs"])

_CANDIDATES = 15


class Endpoint(BaseModel):
    """A task app."""

    endpoint_base_url: str = Field(max_length=MAX_URL, description="Its address, such as http://127.0.0.1:8001")


@router.post("/rl/verify_task_app", summary="Whether a task app works, with the keys that you have for it")
async def verify_task_app(body: Endpoint, caller: CurrentKey, gateway: GatewayDep, passage: PassageDep) -> Response:
    """Check a task app. `any_ok`: one of your environment keys opens it. `attempts`: each result, by the public key id.

    Only keys that belong to its address are sent there, and keys without an address that the same API key has stored
    and that were sent to no other address.
    """
    url = body.endpoint_base_url.strip().rstrip("/")
    if fault := base_url_fault(url):
        problem = Problem(
            what=f"{url[:80]!r} is not the address of a task app: it {fault}",
            expected='an address such as "http://127.0.0.1:8001"',
            where="endpoint_base_url",
        )
        raise ApiError(400, problem.text(), param="endpoint_base_url", problems=[problem])
    question = VerifyTaskApp(org=caller.org, url=url, by=caller.key_id)
    report = await ask(gateway.bus, VERIFY, question, TaskAppReport, within=ANSWER_WITHIN_S)
    opened = next((attempt.key_id for attempt in report.attempts if attempt.ok and attempt.key_id), None)
    if opened is not None:
        # The key may have become bound to the app's address.
        passage.about = f"{opened}/{origin_of(url)}"
    return json_response(_report_body(report, url))


def _report_body(report: TaskAppReport, url: str) -> dict[str, Any]:
    # Clients print the first thousand characters of the body, so the reason comes first.
    return {
        "any_ok": any(attempt.ok for attempt in report.attempts),
        "detail": _summarise(report, url),
        "endpoint_base_url": url,
        "task_name": report.task_name,
        "candidates_first15": report.key_ids[:_CANDIDATES],
        "attempts": [
            {"key": a.key_id, "ok": a.ok, "status": a.status, "path": a.path, "reason": a.reason}
            for a in report.attempts
        ],
    }


def _summarise(report: TaskAppReport, url: str) -> str:
    opened = next((a for a in report.attempts if a.ok), None)
    if opened is not None:
        return f"the task app {report.task_name!r} works, with {opened.key_id or 'no key'}"
    last = report.attempts[-1]
    if last.status not in KEY_REFUSED_STATUSES:
        return last.reason
    origin = origin_of(url)
    how = "POST /api/environment-keys with its url"
    if not report.key_ids:
        return (
            f"the task app asks for a key, and your organisation has none for {origin}; store the one that it was "
            f"started with (its ENVIRONMENT_API_KEY): {how}, or `synth-ai` serve or deploy, which upload it; one "
            "that is stored without a url is offered for a while, to the first address that the same API key names"
        )
    return (
        f"the task app refuses every environment key of your organisation for {origin} ({len(report.key_ids)}); start "
        f"it with one of them, or store the one that it was started with: {how}"
    )
