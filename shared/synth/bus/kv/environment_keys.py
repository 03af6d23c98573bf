"""Environment keys in the bucket of secrets.

Invariants. An environment key belongs to one origin from the moment that it has one, and its purpose never changes. A
key without an origin is offered for a while, and only to the first origin that the API key which stored it names, so
that a thief of that API key does not get it later; if it opens the task app, the origin becomes the key's. Chat
with the key is another record, a grant (`synth.bus.kv.chat_grants`): it has a maker, and ends with it.
"""

# nats-py annotates parts of itself not at all.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import msgspec
from nats.js.errors import KeyNotFoundError

from synth.bus.kv.chat_grants import ChatGrant, ChatGrantStore, secret_digest
from synth.errors import Conflict, InvalidKey
from synth.runtime import logs
from synth.service_secrets import Purpose

log = logs.get("environment_keys")

_TOKEN = re.compile(r"[A-Za-z0-9_-]+")


class EnvironmentKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key that opens a user's task app.

    origin: scheme, host and port, the one place that it is sent to (`synth.outbound.http_guard.origin_of`); None while
    it has none. stored_by: the id of the API key that stored it. offered_until: when a key that has no origin by then
    is offered no more; None for never. offered_to: the one origin that it was offered to. only_at: the origins that it
    may be offered to, those without a port at every port, and each that it opens gets a key of its own; empty for the
    first that answers, wherever that is.
    """

    id: str
    key: str
    origin: str | None = None
    stored_by: str = ""
    stored_at: datetime = datetime.fromtimestamp(0, UTC)
    offered_until: datetime | None = None
    offered_to: str | None = None
    only_at: tuple[str, ...] = ()

    @property
    def is_offered_once(self) -> bool:
        """Whether it may be sent to one origin only, which is to be written down before (`use_offer`)."""
        return self.origin is None and not self.only_at

    def may_be_offered(self, origin: str, *, by: str) -> bool:
        """Return whether this key, which has no origin yet, may be tried at one that the API key `by` names."""
        if self.origin is not None or self.stored_by != by:
            return False
        if self.offered_until is not None and self.offered_until <= datetime.now(UTC):
            return False
        if self.offered_to not in (None, origin):
            return False
        return not self.only_at or origin in self.only_at or re.sub(r":\d+$", "", origin) in self.only_at


class EnvironmentKeyStore(ChatGrantStore):
    """Reads and writes environment keys."""

    async def add_environment_key(
        self,
        org: str,
        key: str,
        *,
        by: str = "",
        origin: str | None = None,
        offered_for: timedelta | None = None,
        only_at: Sequence[str] = (),
    ) -> EnvironmentKey:
        """Keep a key of this organisation for one origin, or, without one, for the first that it opens.

        The same key for the same origin is kept once. offered_for: how long a key without an origin waits for one.
        """
        now = datetime.now(UTC)
        until = now + offered_for if offered_for is not None and origin is None else None
        for kept in await self.environment_keys(org):
            same = hmac.compare_digest(kept.key.encode(), key.encode()) and kept.origin == origin
            if not same or (origin is None and (kept.stored_by, kept.only_at) != (by, tuple(only_at))):
                continue
            lasting = origin is None and kept.offered_until is None
            again = msgspec.structs.replace(
                kept, stored_at=now, offered_until=None if lasting else until, offered_to=None
            )
            if await self._replace(org, again):
                return again
        id = self._public_id(org, key, origin, by, only_at)
        new = EnvironmentKey(
            id=id,
            key=key,
            origin=origin,
            stored_by=by,
            stored_at=now,
            offered_until=until,
            only_at=tuple(only_at),
        )
        if await self._create(_place(org, id), self._seal(new, Purpose.ENVIRONMENT_KEYS)):
            return new
        # Another replica has kept it a moment ago, or it was kept before and has an origin by now.
        with suppress(InvalidKey):
            kept = await self.environment_key(org, id)
            if kept is not None and kept.origin == origin:
                return kept
        new = msgspec.structs.replace(new, id=f"key_{secrets.token_hex(8)}")
        await self._create(_place(org, new.id), self._seal(new, Purpose.ENVIRONMENT_KEYS))
        return new

    async def environment_keys(self, org: str) -> list[EnvironmentKey]:
        """Return every environment key of this organisation that can be read, newest last."""
        results: list[EnvironmentKey] = []
        for message in await self._entries(f"environment.{org}.*"):
            try:
                results.append(self._unseal(message.data, EnvironmentKey, Purpose.ENVIRONMENT_KEYS))
            except InvalidKey as error:
                # The other keys work, and this one can be stored again.
                log.warning("an environment key cannot be read", place=message.subject, reason=str(error))
        return sorted(results, key=lambda key: key.stored_at)

    async def environment_key(self, org: str, id: str) -> EnvironmentKey | None:
        """Return the environment key of this id; None when the organisation has no such key.

        Raises `InvalidKey` for one that was sealed under a secret that this service has not.
        """
        if not _TOKEN.fullmatch(id):
            return None
        result = await self._read(_place(org, id))
        return None if result is None else self._unseal(result, EnvironmentKey, Purpose.ENVIRONMENT_KEYS)

    async def environment_keys_for(self, org: str, origin: str, *, by: str) -> list[EnvironmentKey]:
        """Return the keys to try at an origin, best last: keys that may be offered, then keys that belong to it.

        by: the id of the API key in use.
        """
        keys = await self.environment_keys(org)
        belonging = [key for key in keys if key.origin == origin]
        known = {key.key for key in belonging}
        offered = [key for key in keys if key.key not in known and key.may_be_offered(origin, by=by)]
        return [*{key.key: key for key in offered}.values(), *belonging]

    async def chat_grants_of(self, org: str, keys: Sequence[EnvironmentKey]) -> dict[str, ChatGrant]:
        """Return the grants of these keys of an organisation, by their ids."""
        return await self._chat_grants_of(org, {key.id: key.key for key in keys})

    async def use_offer(self, org: str, key: EnvironmentKey, origin: str) -> bool:
        """Write down that a key without an origin is offered to this one; returns whether it may be sent there.

        It may not if it was offered to another one, or removed, meanwhile.
        """
        if not key.is_offered_once:
            return True
        used = False

        def use(data: bytes) -> bytes | None:
            nonlocal used
            latest = self._unseal(data, EnvironmentKey, Purpose.ENVIRONMENT_KEYS)
            used = latest.origin == origin or latest.may_be_offered(origin, by=key.stored_by)
            if not used or latest.origin == origin or latest.offered_to == origin:
                return None
            latest = msgspec.structs.replace(latest, offered_to=origin)
            return msgspec.json.encode(self._seal(latest, Purpose.ENVIRONMENT_KEYS))

        try:
            await self._change(_place(org, key.id), use)
        except KeyNotFoundError:
            return False
        return used

    async def bind_environment_key(self, org: str, key: EnvironmentKey, origin: str) -> EnvironmentKey:
        """Give a key that has opened its first task app that origin, once and for all.

        Raises `Conflict` when it was removed meanwhile, or belongs to another origin.
        """
        if key.origin == origin:
            return key
        if key.only_at:
            return await self.add_environment_key(org, key.key, by=key.stored_by, origin=origin)
        bound = key

        def bind(data: bytes) -> bytes | None:
            nonlocal bound
            bound = self._unseal(data, EnvironmentKey, Purpose.ENVIRONMENT_KEYS)
            if bound.origin is not None:
                return None
            bound = msgspec.structs.replace(bound, origin=origin, offered_until=None, offered_to=None)
            return msgspec.json.encode(self._seal(bound, Purpose.ENVIRONMENT_KEYS))

        try:
            await self._change(_place(org, key.id), bind)
        except KeyNotFoundError as error:
            raise Conflict(f"the environment key {key.id} was removed while it was tried") from error
        if bound.origin != origin:
            raise Conflict(f"the environment key {key.id} belongs to another address since a moment ago")
        return bound

    async def remove_environment_key(self, org: str, id: str) -> bool:
        """Forget an environment key, and end chat by it; False when the organisation has no such key."""
        try:
            result = await self.environment_key(org, id)
        except InvalidKey:
            # Nobody can chat with a key that nobody can read.
            await self._delete([_place(org, id)])
            return True
        if result is None:
            return False
        await self.revoke_chat(org, result.key)
        await self._delete([_place(org, id)])
        return True

    def _public_id(self, org: str, key: str, origin: str | None, by: str, only_at: Sequence[str]) -> str:
        # From a hash that needs a secret: a reader of the id must not be able to try guesses at the key.
        place = origin or f"by {by} {' '.join(only_at)}"
        secret = self._secrets[Purpose.ENVIRONMENT_KEYS].current
        return f"key_{secret_digest(secret, 'environment', f'{org} {place} {key}')[:16]}"

    async def _replace(self, org: str, key: EnvironmentKey) -> bool:
        """Write a kept key again. Returns False if it now has another origin, or is gone."""
        replaced = False

        def replace(data: bytes) -> bytes | None:
            nonlocal replaced
            replaced = self._unseal(data, EnvironmentKey, Purpose.ENVIRONMENT_KEYS).origin == key.origin
            return msgspec.json.encode(self._seal(key, Purpose.ENVIRONMENT_KEYS)) if replaced else None

        try:
            await self._change(_place(org, key.id), replace)
        except KeyNotFoundError:
            return False
        return replaced


def _place(org: str, id: str) -> str:
    return f"environment.{org}.{id}"
