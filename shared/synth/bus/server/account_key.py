"""The key that vouches for outside subscribers: nats-server accepts the user that a login signed by it names.

It is a NATS account key (nkey, Ed25519) and signs the JSON web tokens of NATS's auth callout: the gateway holds the
seed, the server's configuration the public key. `nk -gen account` makes one too.
"""

from __future__ import annotations

import base64
import json
import secrets
import time
from typing import Any

from synth.bus.access.nkeys import NkeyKind, new_seed, public_of, read_seed
from synth.errors import UserError


class AccountKey:
    """The signing key of the cluster's account. public: the key that verifies its signatures, `A…`."""

    def __init__(self, seed: str) -> None:
        """Read the seed. Raises `UserError` if it is not the seed of an account."""
        try:
            self._key = read_seed(NkeyKind.ACCOUNT, seed)
        except ValueError as error:
            raise UserError(
                "this is not the seed of a NATS account key",
                expected="58 letters and digits that begin with SA",
                fix="`synthd bus issuer` makes one",
                where="SYNTH_NATS_ISSUER_SEED",
            ) from error
        self.public = public_of(NkeyKind.ACCOUNT, self._key)

    @classmethod
    def new_seed(cls) -> str:
        """Return a new seed, `SA…`."""
        return new_seed(NkeyKind.ACCOUNT)

    def sign(self, claims: dict[str, Any]) -> str:
        """Return these claims as a token, with its issuer and its time."""
        whole = {"jti": secrets.token_hex(16), "iat": int(time.time()), "iss": self.public} | claims
        signed = f"{_part({'typ': 'JWT', 'alg': 'ed25519-nkey'})}.{_part(whole)}"
        return f"{signed}.{_base64(self._key.sign(signed.encode()).signature)}"


def read_claims(token: bytes) -> dict[str, Any]:
    """Return the claims of a token of the server, unverified: its subject on the bus proves the sender.

    Raises `ValueError` if it is not a token.
    """
    parts = token.split(b".")
    if len(parts) != 3:
        raise ValueError("not a token of three parts")
    claims = json.loads(base64.urlsafe_b64decode(parts[1] + b"=="))
    if not isinstance(claims, dict):
        raise ValueError("the claims of the token are no object")
    return claims  # pyright: ignore[reportUnknownVariableType]


def _part(claims: dict[str, Any]) -> str:
    return _base64(json.dumps(claims, separators=(",", ":")).encode())


def _base64(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")
