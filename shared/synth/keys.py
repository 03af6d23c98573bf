"""Secrets: API keys, the credential of one rollout (cid), and sealing what must be stored.

An API key is random, so one SHA-256 is enough to keep of it. A URL key is one that stands in the path of an address,
for a client that can send nothing else; it opens chat completions alone. A cid travels in a URL that a task app holds:
it is signed with the cluster's secret, pins everything that the call may do, and expires. None of them is ever logged.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
import string
import time
import zlib

import msgspec
from nacl.exceptions import CryptoError
from nacl.public import PrivateKey, SealedBox
from nacl.secret import SecretBox

from synth.errors import InvalidKey
from synth.rollout_credential import CID_FIX, CID_MAC_LENGTH

_BASE62 = string.digits + string.ascii_uppercase + string.ascii_lowercase
_PREFIX = "synth_live_"
_URL_PREFIX = "synth_url_"
_BODY_LENGTH = 30
_SECRET = re.compile(rf"({_PREFIX}|{_URL_PREFIX}|trace_)\w+")


def new_api_key() -> str:
    """`synth_live_` + 30 random base-62 characters + a checksum of 6, which rejects a typing error offline."""
    return _new_key(_PREFIX)


def new_url_key() -> str:
    """A key for the path of a URL: as an API key, with `synth_url_` before it."""
    return _new_key(_URL_PREFIX)


def is_url_key(key: str) -> bool:
    """Whether this has the look of a URL key."""
    return key.startswith(_URL_PREFIX)


def url_key_path(key: str) -> str:
    """The path of the base URL that a URL key opens, below the gateway's address."""
    return f"/keys/{key}/v1"


def mistyped(key: str) -> bool:
    """Whether this has the look of our API keys but a wrong checksum: nobody can have been given it."""
    prefix = next((p for p in (_PREFIX, _URL_PREFIX) if key.startswith(p)), None)
    if prefix is None:
        return False
    body, checksum = key.removeprefix(prefix)[:-6], key[-6:]
    return len(body) != _BODY_LENGTH or not hmac.compare_digest(_checksum(body).encode(), checksum.encode())


def key_hash(key: str) -> str:
    """What is kept of an API key: hex SHA-256."""
    return hashlib.sha256(key.encode()).hexdigest()


def key_id(key: str) -> str:
    """A short public name for a secret, for events and logs."""
    return f"key_{hashlib.sha256(key.encode()).hexdigest()[:10]}"


def masked(text: str) -> str:
    """A path, or another text for a log or an error, without the credentials in it."""
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
    """What a rollout's credential pins.

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


def mint_cid(cid: Cid, secret: str) -> str:
    """`trace_…`: the signed credential, letters, digits and underscores only (task apps mangle anything else)."""
    version = "L" if cid.version is None else str(cid.version)
    fields = (
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


def read_cid(text: str, secret: str, *, now: float | None = None) -> Cid:
    """The credential that `mint_cid` signed. Raises `InvalidKey` when it is malformed, forged or expired."""
    head, _, mac = text.rpartition("_")
    body = head.removeprefix("trace_")
    if not head.startswith("trace_") or not hmac.compare_digest(_mac(body, secret).encode(), mac.encode()):
        raise InvalidKey(
            f"not a rollout credential of this cluster: it was changed on the way, or is another cluster's; {CID_FIX}"
        )
    rollout, replica, nonce, version, calls, ends, expires = body.split("_")
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


def _mac(body: str, secret: str) -> str:
    return hmac.new(secret.encode(), body.encode(), hashlib.sha256).hexdigest()[:CID_MAC_LENGTH]


def _hex(text: str) -> str:
    return text.encode().hex()


def _unhex(text: str) -> str:
    return bytes.fromhex(text).decode()


def seal(text: str, secret: str) -> str:
    """Encrypt a secret for storage, with the cluster's secret; base64."""
    return base64.b64encode(_box(secret).encrypt(text.encode())).decode()


def unseal(sealed: str, secret: str) -> str:
    """What `seal` encrypted. Raises `InvalidKey` under another cluster's secret."""
    try:
        return _box(secret).decrypt(base64.b64decode(sealed)).decode()
    except (CryptoError, ValueError) as error:
        raise InvalidKey("a stored secret was sealed with another cluster secret") from error


def _box(secret: str) -> SecretBox:
    return SecretBox(hashlib.sha256(f"seal:{secret}".encode()).digest())


def sealing_key(secret: str) -> str:
    """The cluster's X25519 public key, base64: whoever has it can seal a secret for the cluster (libsodium sealed box).

    It follows from the cluster's secret, so every process has it and none keeps it.
    """
    return base64.b64encode(bytes(_private_key(secret).public_key)).decode()


def open_sealed(ciphertext: str, secret: str) -> bytes:
    """What was sealed with `sealing_key`, from base64. Raises `InvalidKey`."""
    try:
        return SealedBox(_private_key(secret)).decrypt(base64.b64decode(ciphertext, validate=True))
    except (CryptoError, ValueError) as error:
        raise InvalidKey("not a sealed box for this cluster's public key") from error


def _private_key(secret: str) -> PrivateKey:
    return PrivateKey(hashlib.sha256(f"sealed box:{secret}".encode()).digest())


def internal_token(secret: str) -> str:
    """The bearer of calls between services."""
    return hmac.new(secret.encode(), b"internal", hashlib.sha256).hexdigest()


def has_bearer(authorization: str, token: str) -> bool:
    """Whether an Authorization header carries this bearer; takes as long for a wrong one as for a nearly right one."""
    return hmac.compare_digest(authorization.encode(), f"Bearer {token}".encode())
