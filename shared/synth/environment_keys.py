"""Decide whether an environment key may be sent to an address: over https, or if the operator allows it."""

from __future__ import annotations

from synth.errors import Problem
from synth.outbound.http_guard import GuardPolicy, names_allowed_address, origin_of, read_url
from synth.settings import Settings


class EnvironmentKeySettings(Settings):
    """Settings of every service that sends environment keys to task apps."""

    allow_plain_http_keys: bool = False
    """Whether environment keys are sent to public addresses over http, too, where everybody on the way reads them. To
    this machine (`SYNTH_ALLOW_LOOPBACK`) and the networks of `SYNTH_ALLOWED_CIDRS` they always are."""


async def plain_http_refused(url: str, policy: GuardPolicy, *, allowed: bool) -> Problem | None:
    """Return the problem of sending a key to this task app over http; None for https, or if the operator allows it.

    allowed: `EnvironmentKeySettings.allow_plain_http_keys`.
    """
    read = read_url(url)
    if allowed or (read is not None and read.scheme == "https") or await names_allowed_address(policy, url):
        return None
    return Problem(
        what=f"the environment key of {origin_of(url)} is not sent over http: everybody on the way would read it",
        expected="https, or an address that the cluster's operator has opened",
        fix="serve the task app over https; or have its network allowed with SYNTH_ALLOWED_CIDRS, or keys over http "
        "with SYNTH_ALLOW_PLAIN_HTTP_KEYS=1",
        where=url,
    )
