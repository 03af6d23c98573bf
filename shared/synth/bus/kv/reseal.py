"""Seals every stored secret again with the current secret, after a rotation, so that the earlier ones can be dropped.

Each record is changed by compare-and-set, and a record under the current secret is left: a run that was broken off can
be started again, and services continue during it.
"""

# nats-py annotates parts of itself not at all.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

from contextlib import suppress

import msgspec
from nats.js.errors import APIError, KeyNotFoundError, KeyWrongLastSequenceError
from nats.js.kv import KeyValue

from synth.bus.kv.bucket import WRONG_LAST_SEQUENCE, Sealed, SecretsBucket, bucket_of, key_of, seal_text, unseal_text
from synth.bus.kv.chat_grants import CHAT_GRANTS
from synth.bus.kv.environment_keys import EnvironmentKey
from synth.bus.kv.secrets import SecretStore
from synth.errors import Conflict, InvalidKey, UserError
from synth.service_secrets import Purpose

_MAX_RACES = 10


class Resealed(msgspec.Struct, frozen=True, kw_only=True):
    """How many records were sealed again, how many were under the current secret already, and how many grants moved."""

    sealed: int
    current: int
    grants: int


class Resealer(SecretsBucket):
    """Seals the records of all organisations again, and moves records under a digest to the current secret's digest."""

    #: The purposes of the sealed records, and their keys in the bucket.
    SEALED = ((Purpose.ENVIRONMENT_KEYS, "environment.*.*"), (Purpose.JUDGE_KEYS, "judge.*.*"))

    async def reseal(self) -> Resealed:
        """Do that for every record. Raises `UserError`, after all others, if some are under an unknown secret."""
        sealed, current, unknown = 0, 0, dict[str, str]()
        for purpose, pattern in self.SEALED:
            for place in [key_of(m.subject) for m in await self._entries(pattern)]:
                try:
                    if await self._reseal(place, purpose):
                        sealed += 1
                    else:
                        current += 1
                except KeyNotFoundError:
                    # Removed a moment ago.
                    continue
                except InvalidKey as error:
                    unknown[place] = str(error)
        grants = await self._move_grants()
        if unknown:
            place, what = next(iter(unknown.items()))
            raise UserError(
                f"{len(unknown)} records cannot be read, {sealed} were sealed again; the first: {what}",
                fix="add the secret there and run this again, or have their owners store those keys anew",
                where=place,
            )
        return Resealed(sealed=sealed, current=current, grants=grants)

    async def _reseal(self, place: str, purpose: Purpose) -> bool:
        """Seal one record again; returns False if it is under the current secret."""
        keyring = self._secrets[purpose]
        changed = False

        def seal_again(data: bytes) -> bytes | None:
            nonlocal changed
            try:
                record = msgspec.json.decode(data, type=Sealed)
            except msgspec.DecodeError as error:
                raise InvalidKey(f"a stored secret is not in a form that can be read: {error}") from error
            changed = record.key != keyring.current.id
            return msgspec.json.encode(seal_text(unseal_text(record, keyring), keyring)) if changed else None

        await self._change(place, seal_again)
        return changed

    async def _move_grants(self) -> int:
        """Put the grants of chat of the kept keys under the digests of the current secret."""
        places = {m.subject.removeprefix(CHAT_GRANTS) for m in await self._entries("chat.*.*")}
        store = SecretStore(self._bus, self._secrets)
        bucket = await self._bus.js.key_value(bucket_of("chat"))
        moved = 0
        for message in await self._entries("environment.*.*"):
            try:
                key = self._unseal(message.data, EnvironmentKey, Purpose.ENVIRONMENT_KEYS)
            except InvalidKey:
                # Its own record was refused.
                continue
            org = message.subject.split(".")[-2]
            current, *earlier = store.chat_digests(key.key)
            for digest in earlier:
                if f"{digest}.{org}" in places:
                    await _move(bucket, f"chat.{digest}.{org}", f"chat.{current}.{org}")
                    moved += 1
                    places.remove(f"{digest}.{org}")
        return moved


async def _move(bucket: KeyValue, place: str, target: str) -> None:
    """Move a record unchanged. A record that is at the target already is newer, and stays.

    A reader of the place and then of the target (`latest_grants`) finds it at any time.
    """
    copied: int | None = None
    for _ in range(_MAX_RACES):
        try:
            entry = await bucket.get(place)
        except KeyNotFoundError:
            return
        body = entry.value or b""
        with suppress(KeyWrongLastSequenceError):
            # Again if it was changed between its copy and its removal: revoked, for example.
            copied = await (bucket.create(target, body) if copied is None else bucket.update(target, body, last=copied))
        try:
            await bucket.delete(place, last=entry.revision)
        except APIError as error:
            if error.err_code != WRONG_LAST_SEQUENCE:
                raise
            continue
        return
    raise Conflict("a grant of chat is being changed by others; try again")
