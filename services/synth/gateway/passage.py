"""What is learned of a request on its way to its route."""

from __future__ import annotations

from dataclasses import dataclass, field

from synth.bus.kv.secrets import ApiKey

#: Where it lies in a request's scope.
PASSAGE = "synth.passage"


@dataclass
class Passage:
    """caller: the key that was checked. headers: what is left of the organisation's limit, for the answer."""

    caller: ApiKey | None = None
    headers: dict[str, str] = field(default_factory=dict[str, str])
