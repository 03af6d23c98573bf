"""The one way in for an environment key, however it arrives: checked, and stored sealed."""

from __future__ import annotations

from synth.api.limits import MAX_ENVIRONMENT_KEY_BYTES
from synth.errors import Problem
from synth.gateway.deps import Gateway
from synth.gateway.errors import ApiError
from synth.ids import OrgId


async def store_environment_key(gateway: Gateway, org: OrgId, key: str) -> str:
    """Store a key of the organisation's task apps; returns its public id. Raises a 400 for one that is unusable."""
    _check(key)
    return await gateway.secrets.add_environment_key(org, key)


def _check(key: str) -> None:
    """Raises a 400 for a key that no HTTP header can carry; the key is not repeated in it."""
    what = None
    if not key:
        what = "the environment key is empty"
    elif len(key.encode()) > MAX_ENVIRONMENT_KEY_BYTES:
        what = f"the environment key has {len(key.encode()):,} bytes"
    elif not (key.isascii() and key.isprintable()) or key.strip() != key:
        what = "the environment key has characters that no HTTP header can carry, or blanks around it"
    if what is None:
        return
    problem = Problem(
        what=what,
        expected=f"printable ASCII, 1 to {MAX_ENVIRONMENT_KEY_BYTES:,} bytes: what your task app compares with",
    )
    raise ApiError(400, problem.text(), problems=[problem])
