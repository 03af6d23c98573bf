"""The call that reads the audit stream."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from synth.api.audit import AuditRecord
from synth.api.limits import MAX_PAGE

if TYPE_CHECKING:
    from synth.cli.api.client import Client


class _Records(msgspec.Struct):
    data: list[AuditRecord]
    has_more: bool = False


def audit_records(client: Client, *, since: datetime, org: str | None) -> Iterator[AuditRecord]:
    """Yield every record since a time, oldest first. org: of one organisation, for an operator."""
    params: dict[str, str | int] = {"since": since.isoformat(), "limit": MAX_PAGE} | ({"org": org} if org else {})
    after, more = 0, True
    while more:
        page = client.request("GET", "/audit", _Records, params=params | {"after": after})
        yield from page.data
        more = page.has_more
        after = page.data[-1].id if page.data else after
