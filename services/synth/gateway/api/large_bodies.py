"""The check of a large body in a worker process, before its route validates it on the event loop."""

from __future__ import annotations

import json
from typing import Any

from fastapi import Request
from fastapi.dependencies.models import Dependant
from pydantic import BaseModel, ValidationError

from synth.errors import MOST_PROBLEMS
from synth.gateway.deps import GatewayDep
from synth.gateway.errors import InvalidBody
from synth.gateway.passage import PASSAGE, Passage
from synth.runtime.off_loop import INLINE_BYTES

#: Characters of a wrong value, or of a name in its place, that an error shows at most.
_SHOWN = 200


async def refuse_invalid_body(request: Request, gateway: GatewayDep) -> None:
    """Raise `InvalidBody` if a body of more than 64 KiB does not fit the model of its route.

    Such a body can have 50,000 unknown fields. The route would list them all, which holds the event loop.
    """
    passage: Passage = request.scope[PASSAGE]
    model = _model_of(request)
    if model is None or passage.caller is None:
        return
    body = await request.body()
    if len(body) <= INLINE_BYTES:
        return
    errors, count = await gateway.service.off_loop.process(
        find_errors, model, body, org=passage.caller.org, size=len(body), task="check the body"
    )
    if errors:
        raise InvalidBody(errors, count)


def find_errors(model: type[BaseModel], body: bytes) -> tuple[list[dict[str, Any]], int]:
    """Return the first errors of a body, in FastAPI's form, and the number of all."""
    try:
        model.model_validate(json.loads(body))
    except ValidationError as error:
        errors = error.errors(include_url=False, include_context=False)
        return [_shortened(dict(each)) for each in errors[:MOST_PROBLEMS]], len(errors)
    except (ValueError, RecursionError):
        pass  # the route refuses what is no JSON
    return [], 0


def _shortened(error: dict[str, Any]) -> dict[str, Any]:
    value = error["input"]
    if isinstance(value, str):
        value = value[:_SHOWN]
    elif not isinstance(value, int | float):
        value = None
    place = [part[:_SHOWN] if isinstance(part, str) else part for part in error["loc"]]
    return error | {"loc": ("body", *place), "input": value}


def _model_of(request: Request) -> type[BaseModel] | None:
    dependant: Any = getattr(request.scope.get("route"), "dependant", None)
    if not isinstance(dependant, Dependant) or len(dependant.body_params) != 1:
        return None
    kind: Any = dependant.body_params[0].field_info.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None
