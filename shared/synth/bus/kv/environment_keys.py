"""Environment keys, and who may chat with one, in the bucket of secrets.

Invariants. An environment key belongs to one origin from the moment that it has one, and what it was stored for never
changes. One without an origin is offered to the API key that stored it alone, which knows it anyway; the first task app
that it opens makes its address the key's. Chat is another record, a grant: it has a maker, and ends with it. It lies
under a digest of the key, made with the current secret; one from before a rotation is found under an earlier secret's.
"""

# nats-py annotates parts of itself not at all.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import msgspec
from nats.js.errors import KeyNotFoundError, NotFoundError

from synth.bus.kv.bucket import SUBJECTS, SecretsBucket
from synth.bus.server.topology import SECRETS
from synth.errors import Conflict, InvalidKey
from synth.ids import OrgId
from synth.runtime import logs
from synth.service_secrets import DerivedSecret, Purpose

#: Where grants of chat lie in the bucket, one subject each: `….chat.<digest of the key>.<org>`.
CHAT_GRANTS = f"{SUBJECTS}chat."

log = logs.get("environment_keys")

_TOKEN = re.compile(r"[A-Za-z0-9_-]+")


class EnvironmentKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key that opens a user's task app.

    origin: scheme, host and port, the one place that it is sent to (`synth.outbound.http_guard.origin_of`); None while
    it has none. stored_by: the id of the API key that stored it. offered_until: when a key that has no origin by then
    is offered no more; None for never. only_at: the origins that it may be offered to, those without a port at every
    port, and each that it opens gets a key of its own; empty for the first that it opens, wherever that is.
    """

    id: str
    key: str
    origin: str | None = None
    stored_by: str = ""
    stored_at: datetime = datetime.fromtimestamp(0, UTC)
    offered_until: datetime | None = None
    only_at: tuple[str, ...] = ()

    def may_be_offered(self, origin: str, *, by: str) -> bool:
        """Whether this key, which has no origin yet, may be tried at one that the API key `by` asks for."""
        if self.origin is not None or self.stored_by != by:
            return False
        if self.offered_until is not None and self.offered_until <= datetime.now(UTC):
            return False
        return not self.only_at or origin in self.only_at or re.sub(r":\d+$", "", origin) in self.only_at


class ChatGrant(msgspec.Struct, frozen=True, kw_only=True):
    """That an environment key opens the chat completions of its organisation, and nothing else.

    by: the id of the API key that granted it, and by_hash its hash: the grant ends with that key.
    """

    org: OrgId
    by: str
    by_hash: str
    made_at: datetime
    expires_at: datetime
    revoked_at: datetime | None = None

    @property
    def active(self) -> bool:
        """Whether it is neither revoked nor expired, whatever became of its maker."""
        return self.revoked_at is None and self.expires_at > datetime.now(UTC)


class EnvironmentKeyStore(SecretsBucket):
    """Reads and writes environment keys, and (in the gateway) grants of chat."""

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
            again = msgspec.structs.replace(kept, stored_at=now, offered_until=None if lasting else until)
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
        """Every environment key of this organisation that can be read, newest last."""
        found: list[EnvironmentKey] = []
        for message in await self._entries(f"environment.{org}.*"):
            try:
                found.append(self._unseal(message.data, EnvironmentKey, Purpose.ENVIRONMENT_KEYS))
            except InvalidKey as error:
                # The others serve, and this one can be stored anew.
                log.warning("an environment key cannot be read", place=message.subject, reason=str(error))
        return sorted(found, key=lambda key: key.stored_at)

    async def environment_key(self, org: str, id: str) -> EnvironmentKey | None:
        """The environment key of this id; None when the organisation has no such key.

        Raises `InvalidKey` for one that was sealed under a secret that this service has not.
        """
        if not _TOKEN.fullmatch(id):
            return None
        found = await self._read(_place(org, id))
        return None if found is None else self._unseal(found, EnvironmentKey, Purpose.ENVIRONMENT_KEYS)

    async def environment_keys_for(self, org: str, origin: str, *, by: str) -> list[EnvironmentKey]:
        """The keys to try at an origin, best last: those that belong to it, before them those that may be offered.

        by: the id of the API key that asks for it.
        """
        keys = await self.environment_keys(org)
        belonging = [key for key in keys if key.origin == origin]
        known = {key.key for key in belonging}
        offered = [key for key in keys if key.key not in known and key.may_be_offered(origin, by=by)]
        return [*{key.key: key for key in offered}.values(), *belonging]

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
            bound = msgspec.structs.replace(bound, origin=origin, offered_until=None)
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
            found = await self.environment_key(org, id)
        except InvalidKey:
            # Nobody can chat with a key that nobody can read.
            await self._delete([_place(org, id)])
            return True
        if found is None:
            return False
        await self.revoke_chat(org, found.key)
        await self._delete([_place(org, id)])
        return True

    # -- chat --

    async def grant_chat(self, org: OrgId, key: str, *, by: str, by_hash: str, lasts: timedelta) -> ChatGrant:
        """Let an environment key of this organisation open chat for a while, in place of an earlier grant."""
        now = datetime.now(UTC)
        grant = ChatGrant(org=org, by=by, by_hash=by_hash, made_at=now, expires_at=now + lasts)
        current, *earlier = self.chat_digests(key)
        await self._put(f"chat.{current}.{org}", grant)
        await self._delete([f"chat.{digest}.{org}" for digest in earlier])
        return grant

    async def chat_grants(self, key: str) -> list[ChatGrant]:
        """The grants of this very key, of every organisation that keeps it; also those that have ended."""
        return await latest_grants(self.chat_digests(key), self.chat_grants_at)

    async def chat_grants_at(self, digest: str) -> list[ChatGrant]:
        """The grants under one digest of a key."""
        found: list[ChatGrant] = []
        seq = 1
        while True:
            try:
                # By its digest, with which the subject begins; the read costs no consumer.
                subject = f"{CHAT_GRANTS}{digest}.*"
                message = await self._bus.js.get_msg(f"KV_{SECRETS}", seq=seq, subject=subject, direct=True, next=True)
            except NotFoundError:
                return found
            assert message.seq is not None
            seq = message.seq + 1
            if message.data:
                found.append(msgspec.json.decode(message.data, type=ChatGrant))

    async def chat_grants_of(self, org: str, keys: Sequence[EnvironmentKey]) -> dict[str, ChatGrant]:
        """What was granted to these keys of an organisation, by their ids."""
        digests = {key.id: self.chat_digests(key.key) for key in keys}
        if not digests:
            return {}
        entries = await self._entries(*sorted({f"chat.{digest}.{org}" for all in digests.values() for digest in all}))
        grants = {m.subject.removeprefix(CHAT_GRANTS).split(".")[0]: m.data for m in entries}
        return {
            id: msgspec.json.decode(grants[newest], type=ChatGrant)
            for id, all in digests.items()
            if (newest := next((digest for digest in all if digest in grants), None)) is not None
        }

    async def revoke_chat(self, org: str, key: str) -> bool:
        """End chat by this environment key of the organisation; False where it had none."""

        def revoke(data: bytes) -> bytes | None:
            grant = msgspec.json.decode(data, type=ChatGrant)
            if not grant.active:
                return None
            return msgspec.json.encode(msgspec.structs.replace(grant, revoked_at=datetime.now(UTC)))

        found = False
        # The earlier first: a reseal that moves a grant meanwhile moves it to the current one, which is changed last.
        for digest in reversed(self.chat_digests(key)):
            with suppress(KeyNotFoundError):
                await self._change(f"chat.{digest}.{org}", revoke)
                found = True
        return found

    def chat_digests(self, key: str) -> list[str]:
        """Under what a key's grants lie, by the current secret first: who reads the bucket cannot try guesses at keys
        that people have chosen."""
        return [_digest(secret, "chat", key) for secret in self._secrets[Purpose.ENVIRONMENT_KEYS]]

    def _public_id(self, org: str, key: str, origin: str | None, by: str, only_at: Sequence[str]) -> str:
        # Of a hash that needs a secret: whoever sees the id must not be able to try guesses at the key.
        place = origin or f"by {by} {' '.join(only_at)}"
        secret = self._secrets[Purpose.ENVIRONMENT_KEYS].current
        return f"key_{_digest(secret, 'environment', f'{org} {place} {key}')[:16]}"

    async def _replace(self, org: str, key: EnvironmentKey) -> bool:
        """Write a kept key anew; False where it has another origin meanwhile, or is gone."""
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


async def latest_grants(
    digests: Sequence[str], grants_at: Callable[[str], Awaitable[list[ChatGrant]]]
) -> list[ChatGrant]:
    """One grant of each organisation: that under the newest secret, whose digest comes first."""
    found: dict[OrgId, ChatGrant] = {}
    # The current secret's last: a reseal copies a grant there before it removes it elsewhere, so that none is missed.
    for digest in reversed(digests):
        found |= {grant.org: grant for grant in await grants_at(digest)}
    return list(found.values())


def _digest(secret: DerivedSecret, use: str, text: str) -> str:
    return hmac.new(secret.for_use("index"), f"{use}:{text}".encode(), hashlib.sha256).hexdigest()


def _place(org: str, id: str) -> str:
    return f"environment.{org}.{id}"
