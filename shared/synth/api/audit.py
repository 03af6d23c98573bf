"""Records of the audit stream, as the gateway writes them and the API shows them."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import msgspec

#: login: a key that is unknown or has ended. refusal: of a key that lacks a scope. change: to keys, or a deletion.
#: operator: whatever a key with the scope `operator` did. erasure: messages that `synthd bus` erased from a stream.
#: loss: messages of a stream that the bus had acknowledged and has no more.
AuditKind = Literal["login", "refusal", "change", "operator", "erasure", "loss"]

#: The value of fields that differ between requests that one record counts together, because there were too many.
OTHERS = "*"


class AuditFact(msgspec.Struct, frozen=True, kw_only=True):
    """An action or a refusal. Equal facts within a window are one record.

    org: the organisation that it concerns; null for a key that is unknown. key: the id of the API key, or `unknown:`
    and a digest that only this cluster can compute. action: the method and the template of the route, or `bus login`.
    about: the ids in the request's path, or the id of the new object. address: of the caller. status: of the answer.
    """

    kind: AuditKind
    org: str | None
    key: str
    action: str
    about: str | None
    address: str | None
    status: int


class AuditRecord(AuditFact, frozen=True, kw_only=True):
    """A fact and how often it happened. id: its place in the stream; at, until: of the first and the last time."""

    id: int = 0
    object: Literal["audit_record"] = "audit_record"
    at: datetime
    until: datetime
    count: int = 1
