"""The KV buckets of secrets: reading, creating and changing records in them, by key and by prefix."""

# nats-py annotates parts of itself not at all.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec
from nats.aio.msg import Msg
from nats.js.errors import APIError, KeyNotFoundError, KeyWrongLastSequenceError
from nats.js.kv import KeyValue

from synth.bus.connection import Connection
from synth.bus.reading import read_across_reconnects
from synth.bus.recorded import EXPECTED, EXPECTED_SUBJECT, WRONG_LAST_SEQUENCES
from synth.bus.replay import replay_messages
from synth.bus.server.topology import SECRETS
from synth.errors import Conflict, InvalidKey
from synth.keys import seal, unseal
from synth.service_secrets import Keyring, Purpose, ServiceSecrets

#: The code of NATS for a write that another one preceded.
WRONG_LAST_SEQUENCE = 10071
_MAX_RACES = 10
_BUCKET_S = 10.0

_T = TypeVar("_T")


def bucket_of(key: str) -> str:
    """Return the bucket of a key or of a pattern of keys: each kind of secret is for other services."""
    return SECRETS[key.partition(".")[0]]


def subject_of_key(key: str) -> str:
    """Return the subject of a key, or of a pattern of keys."""
    return f"$KV.{bucket_of(key)}.{key}"


def key_of(subject: str) -> str:
    """Return the key of a subject."""
    return subject.split(".", 2)[2]


class Sealed(msgspec.Struct, frozen=True, kw_only=True):
    """A record that only a service with the secret of its purpose can read. key: the public id of that secret."""

    key: str = ""
    sealed: str


def seal_text(text: str, keyring: Keyring) -> Sealed:
    """Seal a record's JSON with the current secret."""
    return Sealed(key=keyring.current.id, sealed=seal(text, keyring.current))


def unseal_text(sealed: Sealed, keyring: Keyring) -> str:
    """Return the JSON that was sealed. Raises `InvalidKey` if the secret is not in the keyring."""
    return unseal(sealed.sealed, keyring.need(sealed.key))


class SecretsBucket:
    """Records of secrets, as JSON, in the bucket of their kind; some are sealed with the secret of their purpose."""

    def __init__(self, bus: Connection, secrets: ServiceSecrets) -> None:
        self._bus = bus
        self._secrets = secrets

    def _seal(self, record: msgspec.Struct, purpose: Purpose) -> Sealed:
        return seal_text(msgspec.json.encode(record).decode(), self._secrets[purpose])

    def _unseal(self, data: bytes, kind: type[_T], purpose: Purpose) -> _T:
        """Return the record that `_seal` sealed. Raises `InvalidKey` for one that this service cannot read."""
        try:
            text = unseal_text(msgspec.json.decode(data, type=Sealed), self._secrets[purpose])
            return msgspec.json.decode(text, type=kind)
        except msgspec.DecodeError as error:
            raise InvalidKey(f"a stored secret is not in a form that can be read: {error}") from error

    async def _entries(self, *patterns: str) -> list[Msg]:
        """Return the entries whose keys match one of the patterns, all of one kind, the longest unchanged first."""
        subjects = [subject_of_key(pattern) for pattern in patterns]
        stream = f"KV_{bucket_of(patterns[0])}"
        result = await replay_messages(self._bus.nc, subjects, stream=stream, last_per_subject=True, timeout=_BUCKET_S)
        # A deletion leaves a marker without a body.
        return [m for m in result if m.data]

    async def _read(self, key: str) -> bytes | None:
        async def read() -> KeyValue.Entry:
            return await (await self._bus.js.key_value(bucket_of(key))).get(key)

        try:
            entry = await read_across_reconnects(self._bus, read)
        except KeyNotFoundError:
            return None
        return entry.value or b""

    async def _get(self, key: str, kind: type[_T]) -> _T | None:
        result = await self._read(key)
        return None if result is None else msgspec.json.decode(result, type=kind)

    async def _put(self, key: str, record: msgspec.Struct) -> None:
        """Write a record, in place of an earlier one."""
        await (await self._bus.js.key_value(bucket_of(key))).put(key, msgspec.json.encode(record))

    async def _delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            await (await self._bus.js.key_value(bucket_of(key))).delete(key)

    async def _take(self, key: str) -> bool:
        """Remove a record. Returns False if it is gone or is changed meanwhile."""
        bucket = await self._bus.js.key_value(bucket_of(key))
        try:
            return await bucket.delete(key, last=(await bucket.get(key)).revision)
        except APIError as error:
            if isinstance(error, KeyNotFoundError) or error.err_code == WRONG_LAST_SEQUENCE:
                return False
            raise

    async def _put_after(self, key: str, record: msgspec.Struct, *, last: int, among: str) -> bool:
        """Write a record if `last` is the sequence of the last write to the keys `among`, a pattern; 0: to none.

        Returns False if there was another write.
        """
        expected = {EXPECTED: str(last), EXPECTED_SUBJECT: subject_of_key(among)}
        subject, body = subject_of_key(key), msgspec.json.encode(record)
        try:
            await self._bus.js.publish(subject, body, stream=f"KV_{bucket_of(key)}", headers=expected)
        except APIError as error:
            if error.err_code not in WRONG_LAST_SEQUENCES:
                raise
            return False
        return True

    async def _create(self, key: str, record: msgspec.Struct | str) -> bool:
        """Write a record if the key has none. Returns False if the key has one."""
        bucket = await self._bus.js.key_value(bucket_of(key))
        try:
            await bucket.create(key, msgspec.json.encode(record))
        except KeyWrongLastSequenceError:
            return False
        return True

    async def _change(self, key: str, change: Callable[[bytes], bytes | None]) -> None:
        """Replace a record by the value that `change` makes from the current one; None leaves it.

        Raises `KeyNotFoundError` if the key has no record, and `Conflict` if others change it all the time.
        """
        bucket = await self._bus.js.key_value(bucket_of(key))
        for _ in range(_MAX_RACES):
            entry = await bucket.get(key)
            new = change(entry.value or b"")
            if new is None:
                return
            try:
                await bucket.update(key, new, last=entry.revision)
            except KeyWrongLastSequenceError:
                continue
            return
        raise Conflict("the key is being changed by others; try again")
