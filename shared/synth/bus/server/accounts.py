"""The accounts of nats-server: one holds the streams, and each service has one of its own.

A user's permissions do not limit the messages that the server sends for it: JetStream delivers to any subject that a
request names as its reply or as a consumer's deliver subject. An account limits them. A service imports the subjects of
its permissions from the account of the streams, and questions from the account of the service that answers them; the
server replaces the reply of an imported request by one that leads back to its sender alone. So no request of a service
can write to a stream, a queue or another service, except by a subject that it may publish to (decision 57).
"""

from __future__ import annotations

from collections.abc import Mapping

from synth.bus.access.client import ADMIN_API
from synth.bus.connection import inbox_of
from synth.bus.rpc import QUESTIONS
from synth.bus.server.permissions import OUTSIDE_SUBJECTS, in_account_of_service, may_publish, permissions_of
from synth.events.catalogue import SERVICES

#: The account of the streams, the buckets and the user `bus`.
STREAMS_ACCOUNT = "streams"
#: The account of outside subscribers.
OUTSIDE_ACCOUNT = "outside"

#: The requests that have more than one response.
_STREAMED = (f"{ADMIN_API}.DIRECT.GET.", f"{ADMIN_API}.CONSUMER.MSG.NEXT.")

_Users = list[dict[str, object]]


def accounts(
    passwords: Mapping[str, str], pools: tuple[str, ...], issuer: str, *, nkeys: Mapping[str, tuple[str, ...]]
) -> dict[str, object]:
    """Return the blocks of nats-server's configuration for accounts, their users, exports and imports.

    passwords: of each service and of `bus`. nkeys: public keys by user, in place of a password; a user may have
    several. issuer: the public key of outside logins; with "" there are none.
    """
    users = {name: _users(name, password, pools, nkeys.get(name, ())) for name, password in passwords.items()}
    services = [name for name in SERVICES if name in users]
    imported = {name: _imported(name, pools) for name in services}
    importers: dict[str, list[str]] = {}
    for name, subjects in imported.items():
        for subject in subjects:
            importers.setdefault(subject, []).append(name)
    blocks: dict[str, object] = {
        STREAMS_ACCOUNT: {
            "jetstream": "enabled",
            "users": [user for name in users if name not in SERVICES for user in users[name]],
            "exports": [
                *({"stream": f"{inbox_of(name)}.>", "accounts": [name]} for name in services),
                {"stream": OUTSIDE_SUBJECTS, "accounts": [OUTSIDE_ACCOUNT]},
                *(_export(subject, importers[subject]) for subject in sorted(importers)),
            ],
        },
        OUTSIDE_ACCOUNT: {"imports": [_stream(OUTSIDE_SUBJECTS)]},
    }
    for name in services:
        blocks[name] = {
            "users": users[name],
            "imports": [
                _stream(f"{inbox_of(name)}.>"),
                *(_service(STREAMS_ACCOUNT, subject) for subject in imported[name]),
                *(_service(answerer, subject) for subject, (askers, answerer) in QUESTIONS.items() if name in askers),
            ],
            "exports": [
                {"service": subject, "accounts": list(askers)}
                for subject, (askers, answerer) in QUESTIONS.items()
                if answerer == name
            ],
        }
    config: dict[str, object] = {"accounts": blocks}
    if issuer:
        named = [user.get("nkey") or user["user"] for each in users.values() for user in each]
        # The gateways answer, in their account, for every user that is not named here.
        config["authorization"] = {"auth_callout": {"issuer": issuer, "account": "gateway", "auth_users": named}}
    return config


def _users(name: str, password: str, pools: tuple[str, ...], keys: tuple[str, ...]) -> _Users:
    permissions: dict[str, object] = {"permissions": permissions_of(name, pools)} if name in SERVICES else {}
    return [{"nkey": key} | permissions for key in keys] or [{"user": name, "password": password} | permissions]


def _imported(service: str, pools: tuple[str, ...]) -> list[str]:
    """Return the subjects of the account of the streams that a service publishes to; none covers another one."""
    subjects = [subject for subject in may_publish(service, pools) if subject not in QUESTIONS]
    # A message that two imports match would be published twice.
    return [s for s in dict.fromkeys(subjects) if not any(covers(other, s) for other in subjects if other != s)]


def covers(pattern: str, subject: str) -> bool:
    """Return whether `pattern` matches every subject that `subject` matches."""
    wider, narrower = pattern.split("."), subject.split(".")
    for place, token in enumerate(wider):
        if token == ">":
            return len(narrower) > place
        if place >= len(narrower) or narrower[place] == ">" or token not in ("*", narrower[place]):
            return False
    return len(wider) == len(narrower)


def _export(subject: str, importers: list[str]) -> dict[str, object]:
    export: dict[str, object] = {"service": subject, "accounts": importers}
    return export | ({"response_type": "Stream"} if subject.startswith(_STREAMED) else {})


def _service(account: str, subject: str) -> dict[str, object]:
    """Return the import of a subject to publish to; JetStream's requests have a prefix of their own here.

    Every account has a service of the server below `$JS.API`, which would answer too.
    """
    block: dict[str, object] = {"service": {"account": account, "subject": subject}}
    if (local := in_account_of_service(subject)) != subject:
        block["to"] = local
    return block


def _stream(subject: str) -> dict[str, object]:
    return {"stream": {"account": STREAMS_ACCOUNT, "subject": subject}}
