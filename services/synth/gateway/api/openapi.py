"""The API document: schemas of the msgspec types that handlers return, in addition to FastAPI's own."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from fastapi import FastAPI, Request
from starlette.responses import Response

from synth.gateway.errors import Failure

_REF = "#/components/schemas/{name}"
#: The types that routes return. `returns` registers each type, so that the document lacks none.
_DOCUMENTED: dict[str, type] = {Failure.__name__: Failure}

Responses = dict[int | str, dict[str, Any]]


def json_response(body: Any, status: int = 200) -> Response:
    """Return a JSON response with msgspec structs and plain values in its body."""
    return Response(msgspec.json.encode(body), status, media_type="application/json")


def list_response(items: list[Any], *, more: bool = False) -> Response:
    """Return a response with a list, in the shape that all routes share."""
    return json_response({"object": "list", "data": items, "has_more": more})


def returns(kind: type, description: str = "", *, status: int = 200) -> Responses:
    """Document a route that returns one `kind`."""
    return {status: _json_content(_schema_ref(kind), description or kind.__name__)}


def returns_list(kind: type) -> Responses:
    """Document a route that returns a `list_response` of `kind`."""
    items = {"type": "array", "items": _schema_ref(kind)}
    properties = {"object": {"const": "list"}, "data": items, "has_more": {"type": "boolean"}}
    return {200: _json_content({"type": "object", "properties": properties}, f"A list of {kind.__name__}")}


def complete_document(app: FastAPI) -> None:
    """Add the documented msgspec types and the error response to `/openapi.json`."""
    generate = app.openapi

    def complete() -> dict[str, Any]:
        document = generate()
        _, schemas = msgspec.json.schema_components(_DOCUMENTED.values(), ref_template=_REF)
        # Sort by name: msgspec sorts them by module, and the modules are internal.
        documented = document["components"]["schemas"] | schemas
        document["components"]["schemas"] = dict(sorted(documented.items()))
        for path in document["paths"].values():
            for operation in path.values():
                failure = _json_content(_schema_ref(Failure), "What is wrong, and what to do")
                operation["responses"]["default"] = failure
                operation["responses"].pop("422", None)
        return document

    app.openapi = complete


def serve_document(app: FastAPI) -> None:
    """Serve `/openapi.json`, which needs no key. Its bytes are generated once, because that takes a second."""
    made: list[bytes] = []
    making = asyncio.Lock()

    async def document(request: Request) -> Response:
        if (refused := request.app.state.gateway.open_limit.refuse(request)) is not None:
            return refused
        async with making:
            if not made:
                made.append(await asyncio.to_thread(lambda: msgspec.json.encode(app.openapi())))
        return Response(made[0], media_type="application/json")

    app.add_route("/openapi.json", document, include_in_schema=False)


def _schema_ref(kind: type) -> dict[str, Any]:
    known = _DOCUMENTED.setdefault(kind.__name__, kind)
    assert known is kind, f"two types are called {kind.__name__}"
    return {"$ref": _REF.format(name=kind.__name__)}


def _json_content(schema: dict[str, Any], description: str) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}
