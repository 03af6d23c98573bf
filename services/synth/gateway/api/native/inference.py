"""Routes for calls of models in OpenAI's formats, which an inference replica answers."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from synth.api.limits import MAX_MODEL_ID
from synth.bus.kv.secrets import ApiKey
from synth.errors import InvalidKey, Problem
from synth.fairness.memory import HeldBytes
from synth.gateway.api.native.models import find_model, is_deleted_model
from synth.gateway.auth import authenticate_chat, authenticate_url_key
from synth.gateway.chat_proxy.affinity import ChatRoute, NoModel, read_route
from synth.gateway.chat_proxy.paths import CALL_PATHS
from synth.gateway.deps import Gateway, GatewayDep
from synth.gateway.errors import ApiError, not_found
from synth.gateway.read_model.projection import JobRow
from synth.http_server.body import read_body
from synth.http_server.upgrade import refuse_socket
from synth.ids import OrgId
from synth.models import parse_finetuned
from synth.rollout_credential import find_credential

router = APIRouter(tags=["inference"])

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


_RESPONSES_REQUEST = {
    "required": True,
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "required": ["model", "input"],
                "properties": {
                    "model": {"type": "string"},
                    "input": {
                        "oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}],
                    },
                    "instructions": {"type": "string"},
                    "stream": {"type": "boolean"},
                    "max_output_tokens": {"type": "integer", "minimum": 1},
                    "temperature": {"type": "number", "minimum": 0},
                },
            }
        }
    },
}


@router.post("/v1/responses", summary="Respond by a model (OpenAI)", openapi_extra={"requestBody": _RESPONSES_REQUEST})
async def responses(request: Request, gateway: GatewayDep) -> Response:
    """Respond by a model. Authentication and routing are as for a chat completion.

    A served model keeps no response: `store` and `previous_response_id` are refused. In a rollout both work.
    """
    return await chat_completions(request, gateway)


@router.post("/v1/chat/completions", summary="Chat with a model (OpenAI)", openapi_extra={"requestBody": _CHAT_REQUEST})
async def chat_completions(request: Request, gateway: GatewayDep) -> Response:
    """Forward the request to a replica that serves the body's `model`. A rollout's `?cid=` is itself a credential.

    Without a bearer, an environment key of your organisation in `X-API-Key` authenticates the request. Below
    `/keys/{url_key}/v1` only the URL key authenticates it, and other credentials are ignored.
    """
    if url_key := request.path_params.get("url_key"):
        return await _chat_by_url(request, gateway, await authenticate_url_key(request, url_key))
    try:
        cid = find_credential(
            path=request.scope["path"],
            query=request.url.query,
            authorization=request.headers.get("authorization", ""),
        )
    except InvalidKey as error:
        raise ApiError(401, str(error), code="invalid_api_key") from error
    if cid is not None:
        replica, pinned = gateway.proxy.recorder_of(cid)
        # Check it before the body is read, so that an expired credential uses no memory.
        if (refusal := await gateway.proxy.refusal_of(cid, pinned, replica)) is not None:
            return refusal
        job = gateway.read_model.find("jobs", JobRow, pinned.job_id)
        # Jobs that are not in this gateway's read model yet share one account.
        with gateway.body_memory.hold("" if job is None else job.org) as held:
            body = await _read_body(request, gateway, held)
            return await gateway.proxy.forward_rollout(request, body, cid=cid, replica=replica)
    org = await authenticate_chat(request)
    with gateway.body_memory.hold(org) as held:
        body = await _read_body(request, gateway, held)
        return await _forward(request, gateway, body, org=org, route=await _route_of(gateway, body, org))


async def _chat_by_url(request: Request, gateway: Gateway, key: ApiKey) -> Response:
    with gateway.body_memory.hold(key.org) as held:
        body = await _read_body(request, gateway, held)
        return await _forward_with_url_key(request, gateway, key, body)


async def _forward_with_url_key(request: Request, gateway: Gateway, key: ApiKey, body: bytes) -> Response:
    route = await _route_of(gateway, body, key.org)
    model = route.model
    if key.model is not None and model != key.model and find_model(gateway, key.org, model).id != key.model:
        problem = Problem(
            what=f"this URL's key ({key.key_id}) opens one model, and not {model[:120]!r}",
            expected=key.model,
            fix="name that model, or make a URL for another with `synthctl keys create --url --model`",
            where="model",
        )
        raise ApiError(403, problem.text(), param="model", problems=[problem])
    return await _forward(request, gateway, body, org=key.org, route=route)


async def _route_of(gateway: Gateway, body: bytes, org: OrgId) -> ChatRoute:
    try:
        route = await gateway.service.off_loop.process(
            read_route, body, org=org, size=len(body), task="read the request's model"
        )
    except NoModel as error:
        problem = Problem(what=f"the body names no model: {error}", expected='JSON with "model"', where="body")
        raise ApiError(400, problem.text(), problems=[problem]) from error
    if len(route.model) > MAX_MODEL_ID:
        what = f"the model's id has more than {MAX_MODEL_ID} characters"
        problem = Problem(what=what, expected=f"at most {MAX_MODEL_ID}", where="model")
        raise ApiError(400, problem.text(), param="model", problems=[problem])
    return route


async def _forward(request: Request, gateway: Gateway, body: bytes, *, org: OrgId, route: ChatRoute) -> Response:
    model = route.model
    made = parse_finetuned(model)
    # A replica also knows the policies of running jobs, by job id.
    job_id = made.job_id if made else model if model.startswith("job_") else None
    if job_id is not None and (gateway.read_model.job(org, job_id) is None or is_deleted_model(gateway, org, made)):
        raise not_found("model", model)
    return await gateway.proxy.forward(request, body, org=org, route=route)


for _path in CALL_PATHS:
    router.add_api_route(_path, chat_completions, methods=["POST"], include_in_schema=False)
for _path in ("/v1/responses", *(path for path in CALL_PATHS if path.endswith("/responses"))):
    router.add_api_route(_path, refuse_socket, methods=["GET"], include_in_schema=False)


async def _read_body(request: Request, gateway: Gateway, held: HeldBytes) -> bytes:
    return await read_body(
        request,
        gateway.body_memory,
        held,
        limit=gateway.settings.max_request_bytes,
        setting="SYNTH_MAX_REQUEST_BYTES",
        fix="shorten the messages, or have the operator raise it",
    )
