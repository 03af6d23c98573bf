"""Grants of chat: each names the organisation for which an environment key opens chat completions.

Invariants. A key opens chat for one organisation: the first that was granted it, for as long as that grant lives. The
server compares the grants of all organisations under a digest before it takes another one, so two gateways cannot both
grant it. A grant lies under the digest of each secret that the gateway has, in the order of the digests: two gateways
that have a secret in common compete for the same record, also between the restarts of a rotation.
"""

# nats-py annotates parts of itself not at all.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import hashlib
import hmac
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import msgspec
from nats.js.errors import KeyNotFoundError, NotFoundError

from synth.bus.kv.bucket import SecretsBucket, bucket_of, subject_of_key
from synth.errors import Conflict
from synth.ids import OrgId
from synth.service_secrets import DerivedSecret, Purpose

#: Where grants of chat lie in the bucket, one subject each: `….chat.<digest of the key>.<org>`.
CHAT_GRANTS = subject_of_key("chat.")
_MAX_RACES = 10


class ChatGrant(msgspec.Struct, frozen=True, kw_only=True):
    """A grant: an environment key opens the chat completions of its organisation, and nothing else.

    by: the id of the API key that granted it, and by_hash its hash: the grant ends with that key. since: when the
    first of the grants was made that this one renews; None in a grant of an earlier version.
    """

    org: OrgId
    by: str
    by_hash: str
    made_at: datetime
    expires_at: datetime
    revoked_at: datetime | None = None
    since: datetime | None = None

    @property
    def active(self) -> bool:
        """Whether it is neither revoked nor expired; the state of its maker does not matter."""
        return self.revoked_at is None and self.expires_at > datetime.now(UTC)


#: Whether a grant opens nothing any more.
HasEnded = Callable[[ChatGrant], Awaitable[bool]]


def first_granted(live: Iterable[ChatGrant]) -> ChatGrant | None:
    """Return the valid grant among several live ones of the same key: the oldest. None without any."""
    return min(live, key=lambda grant: (grant.since or grant.made_at, grant.org), default=None)


class ChatGrantStore(SecretsBucket):
    """Reads and (in the gateway) writes grants of chat."""

    async def grant_chat(
        self, org: OrgId, key: str, *, by: str, by_hash: str, lasts: timedelta, has_ended: HasEnded
    ) -> ChatGrant | None:
        """Let an environment key of this organisation open chat for a while, or for longer.

        Returns None if the key opens chat for another organisation. has_ended: applied to each grant that is there.
        Raises `Conflict` if others change the grants of this key all the time.
        """
        digests = sorted(self.chat_digests(key))
        for _ in range(_MAX_RACES):
            places = {digest: await self._grants_at(digest, from_leader=True) for digest in digests}
            live = [grant for grants, _ in places.values() for grant in grants if not await has_ended(grant)]
            holder = first_granted(live)
            if holder is not None and holder.org != org:
                return None
            now = datetime.now(UTC)
            since = now if holder is None else holder.since or holder.made_at
            grant = ChatGrant(org=org, by=by, by_hash=by_hash, made_at=now, expires_at=now + lasts, since=since)
            written = 0
            for digest, (_, last) in places.items():
                if not await self._put_after(f"chat.{digest}.{org}", grant, last=last, among=f"chat.{digest}.*"):
                    break
                written += 1
            else:
                return grant
            if holder is None and written:
                # Another one may have been granted it meanwhile, under a secret that both have.
                await self.revoke_chat(org, key)
        raise Conflict("the grants of chat of this key are being changed by others; try again")

    async def chat_grants(self, key: str) -> list[ChatGrant]:
        """Return the grants of this key, of every organisation that keeps it; also the grants that have ended."""
        return await latest_grants(self.chat_digests(key), self.chat_grants_at)

    async def chat_grants_at(self, digest: str) -> list[ChatGrant]:
        """Return the grants under one digest of a key."""
        grants, _ = await self._grants_at(digest)
        return grants

    async def _grants_at(self, digest: str, *, from_leader: bool = False) -> tuple[list[ChatGrant], int]:
        """Return the grants under one digest of a key, and the sequence of the last write to them; 0 without any."""
        grants: list[ChatGrant] = []
        last = 0
        while True:
            try:
                # By its digest, with which the subject begins; the read costs no consumer.
                message = await self._bus.js.get_msg(
                    f"KV_{bucket_of('chat')}",
                    seq=last + 1,
                    subject=f"{CHAT_GRANTS}{digest}.*",
                    direct=not from_leader,
                    next=True,
                )
            except NotFoundError:
                return grants, last
            assert message.seq is not None
            last = message.seq
            if message.data:
                grants.append(msgspec.json.decode(message.data, type=ChatGrant))

    async def _chat_grants_of(self, org: str, keys: dict[str, str]) -> dict[str, ChatGrant]:
        """Return the grants of an organisation, by the names of its keys. keys: by the same names."""
        digests = {name: self.chat_digests(key) for name, key in keys.items()}
        if not digests:
            return {}
        entries = await self._entries(*sorted({f"chat.{digest}.{org}" for all in digests.values() for digest in all}))
        grants = {m.subject.removeprefix(CHAT_GRANTS).split(".")[0]: m.data for m in entries}
        return {
            name: msgspec.json.decode(grants[newest], type=ChatGrant)
            for name, all in digests.items()
            if (newest := next((digest for digest in all if digest in grants), None)) is not None
        }

    async def revoke_chat(self, org: str, key: str) -> bool:
        """End chat by this environment key of the organisation. Returns False if the key had no grant."""

        def revoke(data: bytes) -> bytes | None:
            grant = msgspec.json.decode(data, type=ChatGrant)
            if not grant.active:
                return None
            return msgspec.json.encode(msgspec.structs.replace(grant, revoked_at=datetime.now(UTC)))

        revoked = False
        # The earlier first: a reseal that moves a grant meanwhile moves it to the current one, which is changed last.
        for digest in reversed(self.chat_digests(key)):
            with suppress(KeyNotFoundError):
                await self._change(f"chat.{digest}.{org}", revoke)
                revoked = True
        return revoked

    def chat_digests(self, key: str) -> list[str]:
        """Return the digests under which a key's grants lie, that by the current secret first.

        They need a secret: a reader of the bucket cannot try guesses at keys that people have chosen.
        """
        return [secret_digest(secret, "chat", key) for secret in self._secrets[Purpose.ENVIRONMENT_KEYS]]


async def latest_grants(
    digests: Sequence[str], grants_at: Callable[[str], Awaitable[list[ChatGrant]]]
) -> list[ChatGrant]:
    """Return one grant of each organisation: the grant under the newest secret, whose digest comes first."""
    grants: dict[OrgId, ChatGrant] = {}
    # The current secret's last: a reseal copies a grant there before it removes it elsewhere, so that none is missed.
    for digest in reversed(digests):
        grants |= {grant.org: grant for grant in await grants_at(digest)}
    return list(grants.values())


def secret_digest(secret: DerivedSecret, use: str, text: str) -> str:
    """Return a digest of a text that nobody without the secret can compute."""
    return hmac.new(secret.for_use("index"), f"{use}:{text}".encode(), hashlib.sha256).hexdigest()
