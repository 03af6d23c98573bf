"""The bounds of one request, as the operator sets them, each under its setting's name."""

from __future__ import annotations

from dataclasses import dataclass, field

from synth.inference.grammar.compiler import SchemaLimits

#: The name of the setting of `RequestLimits.values`.
VALUES_SETTING = "SYNTH_MAX_REQUEST_VALUES"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """The bounds of one request. body: bytes; values: JSON values in it; characters: of the texts of its messages and
    tools; buffered: bytes of the bodies of all requests. choices: the largest `n`.

    seconds: for a completion on a user's own account; a rollout's may take the rest of its rollout. end_seconds:
    for the engine to end it when that is over.
    default_max_tokens: of a reply to a request that sets no limit; None: the rest of the context.
    """

    body: int = 32 << 20
    values: int = 200_000
    characters: int = 4 << 20
    buffered: int = 1 << 30
    choices: int = 128
    seconds: float = 3600.0
    end_seconds: float = 600.0
    default_max_tokens: int | None = 1024
    schema: SchemaLimits = field(default_factory=SchemaLimits)
