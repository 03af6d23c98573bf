"""NATS nkeys: Ed25519 keys as text, with a checksum and a prefix that names the kind of owner.

The tool `nk` of nats-io makes the same keys. nats-py and FastStream can read them only with an additional package; this
module replaces it.
"""

from __future__ import annotations

import base64
import binascii
import secrets
from enum import Enum

from nacl.signing import SigningKey

from synth.errors import UserError

# The prefix of a seed: its first letter in base 32 is `S`, and the second one is the letter of the kind.
_SEED_PREFIX = 18 << 3
_KEY_BYTES = 32


class NkeyKind(Enum):
    """The kind of owner of a key; the value is the prefix of its public text, `A…` or `U…`."""

    ACCOUNT = 0
    USER = 20 << 3


class UserKey:
    """The key with which a user of the bus proves its identity. public: the key that verifies it, `U…`."""

    def __init__(self, seed: str) -> None:
        """Read the seed. Raises `UserError` if it is not the seed of a user."""
        try:
            self._key = read_seed(NkeyKind.USER, seed)
        except ValueError as error:
            raise UserError(
                "this is not the seed of a NATS user key",
                expected="58 letters and digits that begin with SU",
                fix="`synthd bus nkey USER` makes one",
                where="SYNTH_NATS_SEED",
            ) from error
        self.public = public_of(NkeyKind.USER, self._key)

    def sign(self, nonce: str) -> bytes:
        """Return the signature of the nonce that the server sent, in the form of the NATS protocol."""
        return base64.b64encode(self._key.sign(nonce.encode()).signature)


def new_seed(kind: NkeyKind) -> str:
    """Return a new seed, `SA…` or `SU…`."""
    return _text(_seed_prefix(kind) + secrets.token_bytes(_KEY_BYTES))


def read_seed(kind: NkeyKind, seed: str) -> SigningKey:
    """Return the key of a seed. Raises `ValueError` if it is not a seed of this kind."""
    body = _read(seed)
    if len(body) != 2 + _KEY_BYTES or body[:2] != _seed_prefix(kind):
        raise ValueError("not a seed of this kind")
    return SigningKey(body[2:])


def public_of(kind: NkeyKind, key: SigningKey) -> str:
    """Return the public key in the form that configurations and tokens use."""
    return _text(bytes([kind.value]) + bytes(key.verify_key))


def is_public(kind: NkeyKind, text: str) -> bool:
    """Return whether this is a public key of this kind."""
    try:
        body = _read(text)
    except ValueError:
        return False
    return len(body) == 1 + _KEY_BYTES and body[0] == kind.value


def _seed_prefix(kind: NkeyKind) -> bytes:
    return bytes([_SEED_PREFIX | kind.value >> 5, (kind.value & 31) << 3])


def _read(text: str) -> bytes:
    whole = base64.b32decode(text + "=" * (-len(text) % 8))
    body, checksum = whole[:-2], whole[-2:]
    if _checksum(body) != checksum:
        raise ValueError("the checksum does not hold")
    return body


def _text(body: bytes) -> str:
    return base64.b32encode(body + _checksum(body)).decode().rstrip("=")


def _checksum(body: bytes) -> bytes:
    """Return the CRC-16 (XMODEM), the checksum of nkeys."""
    return binascii.crc_hqx(body, 0).to_bytes(2, "little")
