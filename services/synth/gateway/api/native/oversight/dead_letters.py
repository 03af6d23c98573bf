"""Routes of the cluster's dead letters, messages that services could not handle, for its operators."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query
from starlette.responses import Response

from synth.api.dead_letters import DeadLetter, DeadLetterPayload, SettledLetter
from synth.api.limits import MAX_PAGE
from synth.gateway.api.openapi import json_response, list_response, returns, returns_list
from synth.gateway.auth import CurrentKey
from synth.gateway.commands.dead_letters import drop_letter, retry_letter
from synth.gateway.dead_letters import list_letters, read_letter
from synth.gateway.deps import GatewayDep
from synth.gateway.errors import not_found
from synth.gateway.passage import PassageDep
from synth.gateway.read_model.event_log import MAX_SEQUENCE_DIGITS

router = APIRouter(prefix="/api/dead-letters", tags=["operators"])

_Id = Annotated[int, Path(ge=1, lt=10**MAX_SEQUENCE_DIGITS)]


@router.get("", summary="Messages that services could not handle, oldest first", responses=returns_list(DeadLetter))
async def list_dead_letters(
    caller: CurrentKey,
    gateway: GatewayDep,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 100,
    after: Annotated[int, Query(ge=0, lt=10**MAX_SEQUENCE_DIGITS)] = 0,
    settled: bool = False,
) -> Response:
    """List the dead letters of every organisation, with the scope `operator`.

    settled: include letters that were retried or dropped.
    """
    result, more = await list_letters(gateway.bus, after=after, limit=limit, open_only=not settled)
    return list_response(result, more=more)


@router.get("/{id}", summary="One dead letter, with its payload", responses=returns(DeadLetterPayload))
async def get_dead_letter(id: _Id, caller: CurrentKey, gateway: GatewayDep, passage: PassageDep) -> Response:
    """Return a dead letter with its payload, which may contain text that a user wrote."""
    result = await read_letter(gateway.bus, id)
    if result is None:
        raise not_found("dead letter", str(id))
    passage.org = result.letter.org
    return json_response(result)


@router.post("/{id}/retry", summary="Have a dead letter handled again", responses=returns(SettledLetter))
async def retry_dead_letter(id: _Id, caller: CurrentKey, gateway: GatewayDep, passage: PassageDep) -> Response:
    """Queue the letter's event or task again, or resume its parked job. Another failure makes a new letter."""
    settled = await retry_letter(gateway, caller, id)
    passage.org = settled.letter.org
    return json_response(settled)


@router.post("/{id}/drop", summary="Settle a dead letter", responses=returns(SettledLetter))
async def drop_dead_letter(id: _Id, caller: CurrentKey, gateway: GatewayDep, passage: PassageDep) -> Response:
    """Settle a dead letter without any further action."""
    settled = await drop_letter(gateway, caller, id)
    passage.org = settled.letter.org
    return json_response(settled)
