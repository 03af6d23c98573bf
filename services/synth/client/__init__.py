"""The Python client of a Synth cluster: submit jobs, follow them, read their results, and talk to their models.

    from synth.client import Client

    with Client() as client:
        job = client.jobs.submit("sft.toml")
        job = client.jobs.wait(job.id)
        print(client.chat(job.model, "What is 12 + 34?").text)

`AsyncClient` has the same methods for asyncio. docs/python.md shows how to use them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from synth.client.clients import AsyncClient, Client, ModelReply
    from synth.client.connections.known_origins import UnconfirmedOrigin
    from synth.client.errors import (
        ClientError,
        FailedJob,
        NoScore,
        NotAuthorised,
        NotFound,
        TimedOut,
        Unreachable,
        UsageProblem,
    )

__all__ = [
    "AsyncClient",
    "Client",
    "ClientError",
    "FailedJob",
    "ModelReply",
    "NoScore",
    "NotAuthorised",
    "NotFound",
    "TimedOut",
    "UnconfirmedOrigin",
    "Unreachable",
    "UsageProblem",
]
_MODULES = ("synth.client.clients", "synth.client.errors", "synth.client.connections.known_origins")


def __getattr__(name: str) -> Any:
    """Import a name when it is used: `synthctl` reads its settings with this package, and often sends no request."""
    if name in __all__:
        for module in map(import_module, _MODULES):
            if hasattr(module, name):
                return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
