"""Parameters that several routes share, and the check that a route knows each parameter of a request."""

from __future__ import annotations

import difflib
import re
from typing import Annotated, Any

from fastapi import Header, Query, Request
from fastapi.dependencies.models import Dependant
from pydantic import BaseModel

from synth.api.limits import MAX_IDEMPOTENCY_KEY, MAX_PAGE
from synth.errors import Problem
from synth.gateway.errors import ApiError

PageLimit = Annotated[int, Query(ge=1, le=MAX_PAGE)]
IdempotencyKey = Annotated[str | None, Header(min_length=1, max_length=MAX_IDEMPOTENCY_KEY)]

#: The form in which the published clients send a pair of `metadata`.
PAIR_OF_METADATA = re.compile(r"metadata\[(.+)\]")
#: The most problems in one response.
_MOST = 10


async def refuse_unknown_query(request: Request) -> None:
    """Refuse a GET with a query parameter that its route does not read and would ignore.

    Raises a 400 with the name and the nearest known one.
    """
    dependant: Any = getattr(request.scope.get("route"), "dependant", None)
    if request.method != "GET" or not request.query_params or not isinstance(dependant, Dependant):
        return
    known = _query_names(dependant)
    problems = [_unknown(name, known) for name in request.query_params if not _is_known(name, known)]
    if problems:
        text = "; ".join(problem.text() for problem in problems[:_MOST])
        param = str(problems[0].where).removeprefix("query.")
        raise ApiError(400, text, type="invalid_request", param=param, problems=problems[:_MOST])


def _query_names(dependant: Dependant) -> list[str]:
    names: list[str] = []
    for field in dependant.query_params:
        model: Any = field.field_info.annotation
        if isinstance(model, type) and issubclass(model, BaseModel):
            # The route takes several parameters as one object.
            names += [inner.alias or name for name, inner in model.model_fields.items()]
        else:
            names.append(field.alias)
    return [*names, *(name for inner in dependant.dependencies for name in _query_names(inner))]


def _is_known(name: str, known: list[str]) -> bool:
    return name in known or ("metadata" in known and PAIR_OF_METADATA.fullmatch(name) is not None)


def _unknown(name: str, known: list[str]) -> Problem:
    shown = name if len(name) <= 60 else f"{name[:60]}…"
    near = difflib.get_close_matches(name[:60].lower(), known, n=1)
    return Problem(
        what=f"there is no query parameter {shown!r} here",
        expected=", ".join(known) if known else "none",
        fix=f"did you mean {near[0]!r}?" if near else "leave it out",
        where=f"query.{shown}",
    )
