"""The configuration of a nats-server that is deployed, which `synthd bus config` prints."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from synth.bus.access.nkeys import NkeyKind, is_public
from synth.bus.server.accounts import accounts
from synth.bus.server.topology import MAX_PAYLOAD_BYTES
from synth.errors import Problem, UserError
from synth.events.catalogue import SERVICES

#: The environment variable of a deployed bus that holds the public key of outside logins.
ISSUER_VARIABLE = "SYNTH_NATS_ISSUER"
_USERS = ("bus", *SERVICES)
_LINE = 160


@dataclass(frozen=True)
class ServerTls:
    """Files (PEM) on the server's machine. client_ca: the CA of clients' certificates; "" requires none."""

    cert: str
    key: str
    client_ca: str = ""


def deployed_config(
    pools: tuple[str, ...], *, nkeys: Mapping[str, tuple[str, ...]] | None = None, tls: ServerTls | None = None
) -> str:
    """Return the configuration of a deployed server; every user's password is a variable of its own.

    So is the public key of outside logins.

    pools: of the workers; their queues are in the permissions. The configuration for `docker-compose.yml` is committed
    as `deploy/nats.conf`, so that a change of the catalogue's permissions is seen in review.
    nkeys: by user, the public keys that take the place of its password. tls: without it the bus speaks plain text.
    """
    passwords = {user: f"${password_variable(user)}" for user in _USERS}
    config: dict[str, object] = {
        "listen": "0.0.0.0:4222",
        # It has no login, and shows every connection with its user: only for the health check on the same machine.
        "http": "127.0.0.1:8222",
        "max_payload": MAX_PAYLOAD_BYTES,
        "jetstream": {"store_dir": "/data", "sync_interval": "always"},
    }
    if tls is not None:
        config["tls"] = _tls(tls)
    config |= accounts(passwords, pools, f"${ISSUER_VARIABLE}", nkeys=nkeys or {})
    text = _one_import_a_line(json.dumps(config, indent=2))
    for variable in (*passwords.values(), f"${ISSUER_VARIABLE}"):
        # A variable is not looked up inside quotes.
        text = text.replace(f'"{variable}"', variable)
    return text + "\n"


def _one_import_a_line(text: str) -> str:
    """Join the lines of each innermost object, and of an object that holds one, if they fit into one line."""
    for _ in range(2):
        text = re.sub(r"\{[^{}]*(\{[^{}\n]*\}[^{}]*)?\}", lambda match: _joined(match[0]), text)
    return text


def _joined(text: str) -> str:
    line = re.sub(r"([{[]) | ([}\]])", r"\1\2", " ".join(text.split()))
    return line if len(line) <= _LINE else text


def password_variable(user: str) -> str:
    """Return the environment variable of a deployed bus that holds a user's password."""
    return f"SYNTH_NATS_PASSWORD_{user.upper()}"


def read_nkeys(text: str) -> dict[str, tuple[str, ...]]:
    """Return the public keys in `SYNTH_NATS_NKEYS`, by user. Raises `UserError` with every entry that has none."""
    result: dict[str, tuple[str, ...]] = {}
    problems: list[Problem] = []
    for entry in filter(None, map(str.strip, text.split(","))):
        user, named, key = entry.partition("=")
        if not named:
            # The entry may be a seed, which a message must not show.
            problems.append(_bad_nkey("an entry has no USER= before its key", "USER=KEY"))
        elif user not in _USERS:
            problems.append(_bad_nkey(f"{user!r} is no user of the bus", f"one of {', '.join(_USERS)}"))
        elif not is_public(NkeyKind.USER, key):
            problems.append(_bad_nkey(f"the entry of {user} is no public key of a user", "56 characters, U…"))
        else:
            result[user] = (*result.get(user, ()), key)
    if problems:
        raise UserError(problems)
    return result


def read_tls(cert: str, key: str, client_ca: str) -> ServerTls | None:
    """Return the TLS of the server; None if its settings are empty. Raises `UserError` if a needed one is missing."""
    if not cert and not key and not client_ca:
        return None
    if not cert or not key:
        raise UserError(
            "not set, though SYNTH_NATS_SERVER_CERT, SYNTH_NATS_SERVER_KEY or SYNTH_NATS_CLIENT_CA is",
            expected="the server's certificate and its key, as files on the server's machine",
            fix="set both, or none of the three",
            where="SYNTH_NATS_SERVER_KEY" if cert else "SYNTH_NATS_SERVER_CERT",
        )
    return ServerTls(cert, key, client_ca)


def _tls(files: ServerTls) -> dict[str, object]:
    block: dict[str, object] = {"cert_file": files.cert, "key_file": files.key}
    return block | ({"ca_file": files.client_ca, "verify": True} if files.client_ca else {})


def _bad_nkey(what: str, expected: str) -> Problem:
    fix = "write USER=KEY,USER=KEY; `synthd bus nkey USER` prints such an entry"
    return Problem(what=what, expected=expected, fix=fix, where="SYNTH_NATS_NKEYS")
