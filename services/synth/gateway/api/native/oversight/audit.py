"""The route of the audit stream: each action or attempt, with its key and its address."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import AwareDatetime
from starlette.responses import Response

from synth.access import Scope
from synth.api.audit import AuditRecord
from synth.api.limits import MAX_PAGE
from synth.gateway.api.openapi import list_response, returns_list
from synth.gateway.audit.reading import list_records
from synth.gateway.auth import AUDIT_PATH, CurrentKey, require_scope
from synth.gateway.deps import GatewayDep
from synth.gateway.read_model.event_log import MAX_SEQUENCE_DIGITS

router = APIRouter(tags=["keys"])


@router.get(AUDIT_PATH, summary="What was done with keys, oldest first", responses=returns_list(AuditRecord))
async def list_audit_records(
    caller: CurrentKey,
    gateway: GatewayDep,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 100,
    after: Annotated[int, Query(ge=0, lt=10**MAX_SEQUENCE_DIGITS)] = 0,
    since: Annotated[AwareDatetime | None, Query(description="None that was written before: ISO 8601")] = None,
    org: Annotated[
        str | None, Query(pattern=r"^[A-Za-z0-9_-]{1,100}$", description="Of one organisation, for an operator")
    ] = None,
) -> Response:
    """List your organisation's records, with the scope `keys`.

    The scope `operator` gives the records of all organisations, and the records of unknown keys.
    """
    if org is None and Scope.OPERATOR not in caller.scopes:
        org = caller.org
    if org != caller.org:
        require_scope(caller, Scope.OPERATOR)
    records, more = await list_records(gateway.bus, org=org, after=after, since=since, limit=limit)
    return list_response(records, more=more)
