"""Tokens of the HTTP calls between services.

A token is for one receiver, one organisation or job, and a short time, and names the service that calls. So a token
that is read on its way, or by a process that posed as a receiver, opens nothing else.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Collection

from synth.errors import InvalidKey
from synth.service_secrets import DerivedSecret, Keyring, Purpose, ServiceSecrets


class CallSigner:
    """Signs the calls of a service. keyring: of the purpose of its calls; lasts_s: seconds that a token is valid."""

    def __init__(self, keyring: Keyring, *, lasts_s: float) -> None:
        self._purpose, self._secret = keyring.purpose, keyring.current
        self._key = _key(keyring.current)
        self._lasts_s = lasts_s

    def authorization(self, receiver: str, about: str) -> str:
        """Return the Authorization header of one call.

        receiver: the name of the process (`Replica.recorder`). about: the id of the organisation or job of the call.
        """
        expires = int(time.time() + self._lasts_s) + 1
        body = f"{self._purpose}.{self._secret.id}.{expires}"
        return f"Bearer {body}.{_mac(self._key, body, receiver, about)}"


class CallVerifier:
    """Verifies the tokens of calls to this process. receiver: its own name."""

    def __init__(self, secrets: ServiceSecrets, receiver: str) -> None:
        self._secrets = secrets
        self._receiver = receiver

    def verify(self, authorization: str, about: str, *, of: Collection[Purpose]) -> None:
        """Raise `InvalidKey` unless the header is a valid token for this process about this organisation or job.

        of: the callers that may make this call.
        """
        body, _, mac = authorization.removeprefix("Bearer ").rpartition(".")
        purpose, _, rest = body.partition(".")
        id, _, expires = rest.partition(".")
        caller = next((each for each in of if each == purpose), None)
        secret = self._secrets[caller].find(id) if caller is not None else None
        if secret is None:
            raise InvalidKey("not a service of this cluster that may make this call")
        expected = _mac(_key(secret), body, self._receiver, about)
        if not hmac.compare_digest(expected.encode(), mac.encode()):
            raise InvalidKey("the token of this call is for another receiver, organisation or job, or was changed")
        if int(expires) < time.time():
            raise InvalidKey(
                "the token of this call has expired: compare the clocks of the machines, or raise SYNTH_CALL_TOKEN_S"
            )


def _key(secret: DerivedSecret) -> bytes:
    return secret.for_use("calls")


def _mac(key: bytes, body: str, receiver: str, about: str) -> str:
    # No part contains a line's end: a token of one call is none of another.
    return hmac.new(key, f"{body}\n{receiver}\n{about}".encode(), hashlib.sha256).hexdigest()
