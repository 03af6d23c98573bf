"""Facts about a request that are collected on its way to its route."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from synth.bus.kv.secrets import ApiKey

#: The key of the `Passage` in a request's scope.
PASSAGE = "synth.passage"


@dataclass
class Passage:
    """Facts about one request. caller: the key that was checked.

    For the audit stream: tried: a key that was sent, until it is accepted. shown: the record of that key, with any
    scopes. about: the id of a key that the request has made or changed. org: the organisation that it concerns, if that
    is not the key's.
    """

    caller: ApiKey | None = None
    tried: str = ""
    shown: ApiKey | None = None
    about: str | None = None
    org: str | None = None


async def _passage_of(request: Request) -> Passage:
    return request.scope[PASSAGE]


PassageDep = Annotated[Passage, Depends(_passage_of)]
