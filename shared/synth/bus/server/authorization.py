"""Who may come in on the bus: the block of nats-server's configuration that names users, and what each may do."""

from __future__ import annotations

from collections.abc import Mapping

from synth.bus.server.permissions import permissions_of
from synth.events.catalogue import SERVICES


def authorization(
    passwords: Mapping[str, str], pools: tuple[str, ...], issuer: str, *, nkeys: Mapping[str, tuple[str, ...]]
) -> dict[str, object]:
    """The services and `bus`, each by a password or by nkeys.

    issuer: the public key that vouches for everybody else. A user that is named here is never the gateways' to judge.
    nkeys: the public keys of those that have some, in place of a password; each of a user's keys opens it.
    """
    users: list[dict[str, object]] = []
    for name, password in passwords.items():
        may: dict[str, object] = {"permissions": permissions_of(name, pools)} if name in SERVICES else {}
        keys = nkeys.get(name, ())
        users += [{"nkey": key} | may for key in keys] or [{"user": name, "password": password} | may]
    rules: dict[str, object] = {"users": users}
    if issuer:
        rules["auth_callout"] = {"issuer": issuer, "auth_users": [user.get("nkey") or user["user"] for user in users]}
    return rules
