"""OpenAI chat completions: authenticated here, answered by an inference replica."""

from __future__ import annotations

import msgspec
from fastapi import APIRouter, Request
from fastapi.security import HTTPBearer
from starlette.responses import Response

from synth.errors import Problem
from synth.gateway.auth import authenticate
from synth.gateway.failures import ApiError, not_found
from synth.gateway.state import Gateway, Parts
from synth.models import parse_finetuned

router = APIRouter(tags=["inference"])

_bearer = HTTPBearer(auto_error=False)


class _Named(msgspec.Struct):
    model: str


@router.post("/v1/chat/completions", summary="Chat with a model (OpenAI)")
@router.post("/api/v1/chat/completions", include_in_schema=False)
@router.post("/api/inference/v1/chat/completions", include_in_schema=False)
async def chat_completions(request: Request, parts: Parts) -> Response:
    """Routed by the body's `model` to a replica that serves it. A rollout's `?cid=` is a credential of its own."""
    cid = request.query_params.get("cid")
    if cid is not None:
        return await parts.proxy.forward_rollout(request, await _body(request, parts), cid=cid)
    caller = await authenticate(request, await _bearer(request))
    body = await _body(request, parts)
    try:
        model = msgspec.json.decode(body, type=_Named).model
    except msgspec.DecodeError as error:
        problem = Problem(what=f"the body names no model: {error}", expected='JSON with "model"', where="body")
        raise ApiError(400, problem.text(), problems=[problem]) from error
    made = parse_finetuned(model)
    # A replica also knows the policies of running jobs, by job id.
    job_id = made.job_id if made else model if model.startswith("job_") else None
    if job_id is not None and parts.model.job(caller.org, job_id) is None:
        raise not_found("model", model)
    return await parts.proxy.forward(request, body, org=caller.org, model=model)


async def _body(request: Request, parts: Gateway) -> bytes:
    limit, body = parts.settings.max_request_bytes, bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise ApiError(413, f"the request is larger than {limit:,} bytes", type="invalid_request")
    return bytes(body)
