"""OpenAI chat completions: authenticated here, answered by an inference replica."""

from __future__ import annotations

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from synth.errors import Problem
from synth.gateway.auth import authenticate_chat
from synth.gateway.deps import Gateway, Parts
from synth.gateway.errors import ApiError, not_found
from synth.models import parse_finetuned

router = APIRouter(tags=["inference"])

_ALSO_AT = ("/chat/completions", *(f"{p}/v1/chat/completions" for p in ("/api", "/api/inference", "/api/api")))
# What else clients call the credential; apps mean things of their own by these names, too.
_ALIASES = ("trace", "trace_correlation_id")
_CHAT_REQUEST = {
    "required": True,
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "required": ["model", "messages"],
                "properties": {
                    "model": {"type": "string"},
                    "messages": {"type": "array", "items": {"type": "object"}},
                    "stream": {"type": "boolean"},
                    "max_tokens": {"type": "integer", "minimum": 1},
                    "temperature": {"type": "number", "minimum": 0},
                },
            }
        }
    },
}


class _Named(msgspec.Struct):
    model: str


@router.post("/v1/chat/completions", summary="Chat with a model (OpenAI)", openapi_extra={"requestBody": _CHAT_REQUEST})
async def chat_completions(request: Request, parts: Parts) -> Response:
    """Routed by the body's `model` to a replica that serves it. A rollout's `?cid=` is a credential of its own.

    Without a bearer, `X-API-Key` with an environment key of your organisation opens it.
    """
    cid = _credential(request, parts)
    if cid is not None:
        return await parts.proxy.forward_rollout(request, await _body(request, parts), cid=cid)
    org = await authenticate_chat(request)
    body = await _body(request, parts)
    try:
        model = msgspec.json.decode(body, type=_Named).model
    except msgspec.DecodeError as error:
        problem = Problem(what=f"the body names no model: {error}", expected='JSON with "model"', where="body")
        raise ApiError(400, problem.text(), problems=[problem]) from error
    made = parse_finetuned(model)
    # A replica also knows the policies of running jobs, by job id.
    job_id = made.job_id if made else model if model.startswith("job_") else None
    if job_id is not None and parts.model.job(org, job_id) is None:
        raise not_found("model", model)
    return await parts.proxy.forward(request, body, org=org, model=model)


for _path in _ALSO_AT:
    router.add_api_route(_path, chat_completions, methods=["POST"], include_in_schema=False)


def _credential(request: Request, parts: Gateway) -> str | None:
    given = request.query_params
    if "cid" in given:
        return given["cid"]
    return next((given[name] for name in _ALIASES if name in given and parts.proxy.mints(given[name])), None)


async def _body(request: Request, parts: Gateway) -> bytes:
    limit, body = parts.settings.max_request_bytes, bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise ApiError(413, f"the request is larger than {limit:,} bytes", type="invalid_request")
    return bytes(body)
