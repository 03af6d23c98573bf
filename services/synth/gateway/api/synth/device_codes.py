"""The codes with which a person approves a new machine (RFC 8628); unapproved codes are not stored.

A device code is random, contains its expiry time and is signed. Its user code is derived from it: eight characters, and
four that prove that the cluster made the eight. So a mistyped or invented user code is refused, and an unapproved code
costs no memory.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from dataclasses import dataclass

from synth.errors import InvalidKey
from synth.service_secrets import DerivedSecret, Keyring

#: Seconds in which a device code must be approved and redeemed.
LIFETIME_S = 600
_USE = "device codes"
_MAC_LENGTH = 32
#: Crockford's base 32, which has no letter that looks like a digit, and no U.
_LETTERS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_LOOK_ALIKES = str.maketrans("OIL", "011")
_DEVICE_CODE = re.compile(rf"([0-9a-f]{{1,16}}-[0-9a-f]{{32}})-([0-9a-f]{{{_MAC_LENGTH}}})")


@dataclass(frozen=True)
class DeviceCode:
    """A code of this cluster. user_code: the code that its user reads and types; expires_at: unix seconds."""

    text: str
    user_code: str
    expires_at: int


def new_device_code(keyring: Keyring) -> DeviceCode:
    """Make a device code that expires after `LIFETIME_S`."""
    expires_at = int(time.time()) + LIFETIME_S
    return _signed(keyring.current, f"{expires_at:x}-{secrets.token_hex(16)}", expires_at)


def read_device_code(text: str, keyring: Keyring) -> DeviceCode:
    """Return the code that a client sent; it may have expired.

    Raises `InvalidKey` if this cluster did not make it.
    """
    if match := _DEVICE_CODE.fullmatch(text):
        for secret in keyring:
            code = _signed(secret, match[1], int(match[1].partition("-")[0], 16))
            if hmac.compare_digest(code.text, text):
                return code
    raise InvalidKey("this device code is not one of this cluster")


def read_user_code(text: str, keyring: Keyring) -> str:
    """Return a typed user code in its standard form. Raises `InvalidKey` if this cluster did not make it."""
    letters = re.sub(r"[\s-]", "", text).upper().translate(_LOOK_ALIKES)
    if any(letters == _with_proof(secret, letters[:8]) for secret in keyring):
        return _grouped(letters)
    raise InvalidKey("this code is mistyped, or not one of this cluster")


def _signed(secret: DerivedSecret, body: str, expires_at: int) -> DeviceCode:
    text = f"{body}-{_digest(secret, 'device', body)[:_MAC_LENGTH]}"
    first = _letters(_digest(secret, "user", text), 8)
    return DeviceCode(text, _grouped(_with_proof(secret, first)), expires_at)


def _with_proof(secret: DerivedSecret, first: str) -> str:
    return first + _letters(_digest(secret, "proof", first), 4)


def _digest(secret: DerivedSecret, kind: str, text: str) -> str:
    return hmac.digest(secret.for_use(_USE), f"{kind}:{text}".encode(), hashlib.sha256).hex()


def _letters(digest: str, count: int) -> str:
    number = int(digest, 16)
    return "".join(_LETTERS[(number >> (5 * at)) & 31] for at in range(count))


def _grouped(letters: str) -> str:
    return "-".join(letters[at : at + 4] for at in range(0, len(letters), 4))
