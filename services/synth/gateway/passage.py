"""What is learned of a request on its way to its route."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from synth.bus.kv.secrets import ApiKey

#: Where it lies in a request's scope.
PASSAGE = "synth.passage"


@dataclass
class Passage:
    """caller: the key that was checked.

    For the audit stream: tried: a key that was sent, until it is accepted. shown: the key that it is, whatever it may
    do. about: the id of a key that the request has made or changed. org: the organisation that it concerns, where that
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
