"""Secrets: API keys, the credential of one rollout (cid), and the encryption of stored secrets.

An API key is random, so one SHA-256 is enough to keep of it. A URL key is one that stands in the path of an address,
for a client that can send nothing else; it opens chat completions alone. A bus key opens its organisation's events on
the bus. A cid travels in a URL that a task app holds: it is signed with a secret of the cluster, which it names by its
public id, pins everything that the call may do, and expires. None of them is ever logged.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import html
import json
import re
import secrets
import string
import time
import zlib
from collections.abc import Iterable
from contextlib import suppress
from urllib.parse import quote

import msgspec
from nacl.exceptions import CryptoError
from nacl.public import PrivateKey, SealedBox
from nacl.secret import SecretBox

from synth.errors import InvalidKey
from synth.rollout_credential import CID_FIX, CID_MAC_LENGTH
from synth.service_secrets import DerivedSecret, Keyring

_BASE62 = string.digits + string.ascii_uppercase + string.ascii_lowercase
_PREFIX = "synth_live_"
_URL_PREFIX = "synth_url_"
_BUS_PREFIX = "synth_bus_"
_BODY_LENGTH = 30
_SECRET = re.compile(rf"({_PREFIX}|{_URL_PREFIX}|{_BUS_PREFIX}|trace_)\w+")


def new_api_key() -> str:
    """Generate `synth_live_` + 30 random base-62 characters + a checksum of 6, which shows a typing error offline."""
    return _new_key(_PREFIX)


def new_url_key() -> str:
    """Generate a key for the path of a URL: an API key with the prefix `synth_url_`."""
    return _new_key(_URL_PREFIX)


def new_bus_key() -> str:
    """Generate a key for an organisation's events on the bus: an API key with the prefix `synth_bus_`."""
    return _new_key(_BUS_PREFIX)


def is_bus_key(key: str) -> bool:
    """Return whether a text has the form of a key for the bus."""
    return key.startswith(_BUS_PREFIX)


def is_url_key(key: str) -> bool:
    """Return whether a text has the form of a URL key."""
    return key.startswith(_URL_PREFIX)


def is_platform_key(key: str) -> bool:
    """Return whether a text has the form of an API key of any kind, or of a rollout's credential."""
    return _SECRET.match(key) is not None


def url_key_path(key: str) -> str:
    """Return the path of the base URL that a URL key opens, below the gateway's address."""
    return f"/keys/{key}/v1"


def mistyped(key: str) -> bool:
    """Return whether a text has the form of an API key but a wrong checksum: it cannot be valid."""
    prefix = next((p for p in (_PREFIX, _URL_PREFIX, _BUS_PREFIX) if key.startswith(p)), None)
    if prefix is None:
        return False
    body, checksum = key.removeprefix(prefix)[:-6], key[-6:]
    return len(body) != _BODY_LENGTH or not hmac.compare_digest(_checksum(body).encode(), checksum.encode())


def key_hash(key: str) -> str:
    """Return the stored form of an API key: hex SHA-256."""
    return hashlib.sha256(key.encode()).hexdigest()


def key_id(key: str) -> str:
    """Return a short public name for a secret, for events and logs."""
    return f"key_{hashlib.sha256(key.encode()).hexdigest()[:10]}"


def without_secrets(content: bytes, secrets: Iterable[str]) -> bytes:
    """Remove secrets from an answer that may echo them: each as it is, and in JSON, HTML, URL and base64 encoding."""
    for secret in secrets:
        forms = {
            secret,
            json.dumps(secret)[1:-1],
            html.escape(secret),
            quote(secret, safe=""),
            base64.b64encode(secret.encode()).decode().rstrip("="),
            base64.urlsafe_b64encode(secret.encode()).decode().rstrip("="),
        }
        for form in sorted(forms, key=len, reverse=True):
            content = content.replace(form.encode(), b"[secret]")
    return content


def masked(text: str) -> str:
    """Return a path, or another text for a log or an error, without the credentials in it."""
    return _SECRET.sub(r"\1…", text)


def _new_key(prefix: str) -> str:
    body = "".join(secrets.choice(_BASE62) for _ in range(_BODY_LENGTH))
    return f"{prefix}{body}{_checksum(body)}"


def _checksum(body: str) -> str:
    number, text = zlib.crc32(body.encode()), ""
    while len(text) < 6:
        number, digit = divmod(number, 62)
        text = _BASE62[digit] + text
    return text


class Cid(msgspec.Struct, frozen=True, kw_only=True):
    """The values that a rollout's credential pins.

    rollout_id: names the job. nonce: a random number, so that the credentials of a rollout's collectors never repeat.
    replica: the inference process that records it. version: the pinned policy version of an evaluation, None for the
    live policy. calls: how many chat calls it may make. ends: unix seconds at which the policy's time is over, and
    expires: at which the credential is, both beside the time that the policy was not given.
    """

    rollout_id: str
    nonce: int
    replica: str
    version: int | None
    calls: int
    ends: float
    expires: int

    @property
    def job_id(self) -> str:
        return self.rollout_id.rsplit("_", 2)[0]


def mint_cid(cid: Cid, keyring: Keyring) -> str:
    """Return the signed credential, `trace_…`: only letters, digits and underscores, as task apps change others."""
    secret = keyring.current
    version = "L" if cid.version is None else str(cid.version)
    fields = (
        secret.id,
        _hex(cid.rollout_id),
        _hex(cid.replica),
        str(cid.nonce),
        version,
        str(cid.calls),
        str(round(cid.ends * 1000)),
        str(cid.expires),
    )
    body = "_".join(fields)
    return f"trace_{body}_{_mac(body, secret)}"


def read_cid(text: str, keyring: Keyring, *, now: float | None = None) -> Cid:
    """Return the credential that `mint_cid` signed, with the current secret or an earlier one.

    Raises `InvalidKey` when it is malformed, forged or expired.
    """
    head, _, mac = text.rpartition("_")
    body = head.removeprefix("trace_")
    secret = keyring.find(body.partition("_")[0]) if head.startswith("trace_") else None
    if secret is None or not hmac.compare_digest(_mac(body, secret).encode(), mac.encode()):
        raise InvalidKey(
            f"not a rollout credential of this cluster: it was changed on the way, or is another cluster's; {CID_FIX}"
        )
    _, rollout, replica, nonce, version, calls, ends, expires = body.split("_")
    if int(expires) < (time.time() if now is None else now):
        raise InvalidKey(f"the rollout credential has expired: its rollout is over; in the next rollout, {CID_FIX}")
    return Cid(
        rollout_id=_unhex(rollout),
        replica=_unhex(replica),
        nonce=int(nonce),
        version=None if version == "L" else int(version),
        calls=int(calls),
        ends=int(ends) / 1000,
        expires=int(expires),
    )


def _mac(body: str, secret: DerivedSecret) -> str:
    return hmac.new(secret.key, body.encode(), hashlib.sha256).hexdigest()[:CID_MAC_LENGTH]


def _hex(text: str) -> str:
    return text.encode().hex()


def _unhex(text: str) -> str:
    return bytes.fromhex(text).decode()


def seal(text: str, secret: DerivedSecret) -> str:
    """Encrypt a secret for storage, as base64."""
    return base64.b64encode(_box(secret).encrypt(text.encode())).decode()


def unseal(sealed: str, secret: DerivedSecret) -> str:
    """Return the text that `seal` encrypted. Raises `InvalidKey` for another secret, or if it was changed since."""
    try:
        return _box(secret).decrypt(base64.b64decode(sealed)).decode()
    except (CryptoError, ValueError) as error:
        raise InvalidKey(f"a stored secret that was sealed under the key {secret.id} is damaged") from error


def _box(secret: DerivedSecret) -> SecretBox:
    return SecretBox(secret.for_use("seal"))


def sealing_key(keyring: Keyring) -> str:
    """Return the cluster's X25519 public key, base64: it seals secrets for the cluster (libsodium sealed box).

    It follows from the secret for clients, so every gateway has it and none stores it.
    """
    return base64.b64encode(bytes(_private_key(keyring.current).public_key)).decode()


def open_sealed(ciphertext: str, keyring: Keyring) -> bytes:
    """Open text in base64 that was sealed with `sealing_key`, also with an earlier secret's. Raises `InvalidKey`."""
    try:
        sealed = base64.b64decode(ciphertext, validate=True)
    except ValueError as error:
        raise _not_for_us() from error
    for secret in keyring:
        # A sealed box does not name the public key that it was made with.
        with suppress(CryptoError, ValueError):
            return SealedBox(_private_key(secret)).decrypt(sealed)
    raise _not_for_us()


def _not_for_us() -> InvalidKey:
    return InvalidKey("not a sealed box for this cluster's public key")


def _private_key(secret: DerivedSecret) -> PrivateKey:
    return PrivateKey(secret.key)
