"""The rules of the event catalogue: the publisher of an event, its readers, and the protection of its append."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import TypeVar

import msgspec

#: Bytes of one event, its headers included.
MAX_EVENT_BYTES = 1 << 20
#: Bytes of its body: the rest is for the headers.
MAX_EVENT_BODY_BYTES = 1_000_000


class Role(StrEnum):
    """The roles that may publish. A service has the role of its name; trainer and rollouts are also owners."""

    GATEWAY = "gateway"
    VALIDATOR = "validator"
    VERIFIER = "verifier"
    FILES = "files"
    ROLLOUTS = "rollouts"
    INFERENCE = "inference"
    JUDGE = "judge"
    TRAINER = "trainer"
    OWNER = "owner"


#: The services. Each has a user of its own on the bus; the user `bus` provisions it.
SERVICES: tuple[str, ...] = tuple(role.value for role in Role if role is not Role.OWNER)


class Reading(StrEnum):
    QUEUE = "queue"
    FOLLOW = "follow"


class Write(StrEnum):
    """How an append is protected.

    ONCE: by its deterministic id alone. CAS: expects the last sequence of `job.*.<org>.<job>`, so that two writers
    cannot both decide. FENCED: expects its owner's claim to be the last one: the `job.started` of an attempt at a job,
    or the `collection.started` of an RL job's collector. CHAIN: expects the last sequence of its own subject, so that
    each fact of it knows the one before.
    """

    ONCE = "once"
    CAS = "cas"
    FENCED = "fenced"
    CHAIN = "chain"


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """A fact. Fields are added, never renamed or removed, within one schema version."""


class EventSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the catalogue."""

    type: str
    event: type[Event]
    by: Role
    reads: dict[Role, Reading]
    write: Write
    version: int


CATALOGUE: dict[str, EventSpec] = {}
_SPEC_OF: dict[type[Event], EventSpec] = {}
_E = TypeVar("_E", bound=type[Event])
_Reads = dict[Role, Reading]
_NOBODY: _Reads = {}


def event(
    type: str, *, by: Role, reads: _Reads = _NOBODY, write: Write = Write.ONCE, version: int = 1
) -> Callable[[_E], _E]:
    """Add an event class to the catalogue, under its type, which is the head of its subject."""

    def register(cls: _E) -> _E:
        spec = EventSpec(type=type, event=cls, by=by, reads=reads, write=write, version=version)
        CATALOGUE[type] = _SPEC_OF[cls] = spec
        return cls

    return register


def spec_of(event: Event | type[Event]) -> EventSpec:
    """Return the catalogue row of an event or of its class."""
    return _SPEC_OF[event if isinstance(event, type) else type(event)]


def subject_of(event: Event | type[Event], org: str, key: str) -> str:
    """Return the subject that an event of this organisation and job (or file) travels on."""
    return f"{spec_of(event).type}.{org}.{key}"
