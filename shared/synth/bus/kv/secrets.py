"""Organisations, their API keys, their environment keys and their keys of judges, in their KV bucket.

They are the only data that is not in the log: events carry key ids only. An API key is kept as its hash; the others are
sealed, each kind with a secret of its own. A record of an API key is never removed: a revoked one has `revoked_at`. The
records of an organisation are below its id, so that a list reads no record of another one; `owner.<hash>` holds the
organisation of an API key.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import msgspec

from synth.access import Organisation, Scope
from synth.bus.kv.bucket import key_of, subject_of_key
from synth.bus.kv.environment_keys import EnvironmentKeyStore
from synth.errors import Permanent
from synth.ids import OrgId, new_org_id
from synth.keys import key_hash, key_id, mistyped, new_api_key, new_bus_key, new_url_key
from synth.service_secrets import Purpose

#: Where API keys lie in the bucket, one subject each: `….api.<org>.<hash>`.
API_KEYS = subject_of_key("api.")


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """The stored record of an API key. The key itself is shown once and never stored.

    digest: its hash (`synth.keys.key_hash`). created_by: the id of the key that made it, its own for the bootstrap key.
    url: it opens chat completions at its own URL, and nothing as a bearer; model: the one model that it may then use,
    None for all models of the organisation. bus: it opens the organisation's events on the bus, and nothing else.
    replaced_by: the id of the key that a rotation made in its place; it has at most one.
    """

    org: OrgId
    key_id: str
    digest: str
    name: str
    scopes: tuple[Scope, ...]
    created_at: datetime
    created_by: str
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    url: bool = False
    model: str | None = None
    bus: bool = False
    replaced_by: str | None = None

    @property
    def expired(self) -> bool:
        return self.expires_at is not None and self.expires_at <= datetime.now(UTC)

    @property
    def active(self) -> bool:
        """Whether it is neither revoked nor expired."""
        return self.revoked_at is None and not self.expired


class JudgeKey(msgspec.Struct, frozen=True, kw_only=True):
    """The key of a judge's API. origin: scheme, host and port, the one place that it is sent to."""

    key: str
    origin: str


class DeviceApproval(msgspec.Struct, frozen=True, kw_only=True):
    """An approval of a machine that requests keys of an organisation. by_hash: the digest of the approver's API key."""

    org: OrgId
    by_hash: str
    expires_at: datetime


class SecretStore(EnvironmentKeyStore):
    """Reads and (in the gateway) writes the secrets of all organisations."""

    # -- organisations --

    async def add_organisation(self, name: str) -> Organisation:
        """Make an organisation, without a key."""
        made = Organisation(id=new_org_id(), name=name, created_at=datetime.now(UTC))
        await self._create(f"org.{made.id}", made)
        return made

    async def organisation(self, org: str) -> Organisation | None:
        """Return the organisation with this id."""
        return await self._get(f"org.{org}", Organisation)

    async def organisations(self) -> list[Organisation]:
        """Return every organisation of the cluster, the oldest first."""
        return [msgspec.json.decode(m.data, type=Organisation) for m in await self._entries("org.*")]

    # -- API keys --

    async def ensure_api_key(self, key: str, *, name: str = "bootstrap") -> ApiKey:
        """Return this key's record; makes one if missing, with every scope in a new organisation. Replicas use one.

        Raises `Permanent` for a mistyped key, which could never be used.
        """
        if mistyped(key):
            raise Permanent("SYNTH_BOOTSTRAP_API_KEY begins with synth_live_ but its checksum is wrong: it is mistyped")
        org = await self._own(new_org_id(), key)
        record = _record(org, key, name=name, scopes=tuple(Scope), by=key_id(key))
        # Each write is separate, so that a restart completes them after a process died between two.
        if not await self._create(_place(org, record.digest), record):
            result = await self.find_api_key(key)
            assert result is not None
            record = result
        await self._create(
            f"org.{record.org}", Organisation(id=record.org, name="default", created_at=record.created_at)
        )
        return record

    async def add_api_key(
        self, org: OrgId, *, name: str, scopes: tuple[Scope, ...], by: str, expires_at: datetime | None = None
    ) -> tuple[str, ApiKey]:
        """Make a key of this organisation; returns it, which happens once, and its record."""
        key = new_api_key()
        return await self._add(key, _record(org, key, name=name, scopes=scopes, by=by, expires_at=expires_at))

    async def add_url_key(
        self, org: OrgId, *, name: str, by: str, expires_at: datetime, model: str | None = None
    ) -> tuple[str, ApiKey]:
        """Make a URL key of this organisation, for one model or for all; returns it, once, and its record."""
        key = new_url_key()
        record = _record(org, key, name=name, scopes=(Scope.INFERENCE,), by=by, expires_at=expires_at)
        return await self._add(key, msgspec.structs.replace(record, url=True, model=model))

    async def add_bus_key(
        self, org: OrgId, *, name: str, by: str, expires_at: datetime | None = None
    ) -> tuple[str, ApiKey]:
        """Make a key for this organisation's events on the bus; returns it, once, and its record."""
        key = new_bus_key()
        record = _record(org, key, name=name, scopes=(Scope.READ,), by=by, expires_at=expires_at)
        return await self._add(key, msgspec.structs.replace(record, bus=True))

    async def find_api_key(self, key: str) -> ApiKey | None:
        """Return the record of this key, which may be revoked or expired; None for an unknown key."""
        return await self.find_api_key_by_hash(key_hash(key))

    async def find_api_key_by_hash(self, digest: str) -> ApiKey | None:
        """Return the record of the key with this hash, which may be revoked or expired; None for an unknown key."""
        org = await self._get(f"owner.{digest}", str)
        return None if org is None else await self._get(_place(org, digest), ApiKey)

    async def api_keys(self, org: str) -> list[ApiKey]:
        """Return every key that this organisation ever had, the oldest first."""
        results = [msgspec.json.decode(m.data, type=ApiKey) for m in await self._entries(f"api.{org}.*")]
        return sorted(results, key=lambda key: key.created_at)

    async def revoke_api_key(
        self, org: str, id: str, *, after: timedelta = timedelta(), replaced_by: str | None = None
    ) -> ApiKey | None:
        """End a key, at once or after a while; None when the organisation has no such key.

        A key that ends sooner, or has ended, is left as it is. replaced_by: the key that takes its place; one that has
        another successor already is left as it is too.
        """
        now = datetime.now(UTC)

        def ended(record: ApiKey) -> ApiKey:
            if not record.active or (replaced_by and record.replaced_by):
                return record
            if replaced_by:
                record = msgspec.structs.replace(record, replaced_by=replaced_by)
            if not after:
                return msgspec.structs.replace(record, revoked_at=now)
            until = now + after
            sooner = until if record.expires_at is None else min(until, record.expires_at)
            return msgspec.structs.replace(record, expires_at=sooner)

        for message in await self._entries(f"api.{org}.*"):
            if msgspec.json.decode(message.data, type=ApiKey).key_id == id:
                return await self._end(key_of(message.subject), ended)
        return None

    async def _add(self, key: str, record: ApiKey) -> tuple[str, ApiKey]:
        await self._own(record.org, key)
        await self._create(_place(record.org, record.digest), record)
        return key, record

    async def _own(self, org: OrgId, key: str) -> OrgId:
        """Store the owner of this key, unless it has one; returns the owner."""
        owner = f"owner.{key_hash(key)}"
        if await self._create(owner, org):
            return org
        stored = await self._get(owner, str)
        assert stored is not None
        return OrgId(stored)

    async def _end(self, place: str, ended: Callable[[ApiKey], ApiKey]) -> ApiKey:
        record: ApiKey | None = None

        def end(data: bytes) -> bytes | None:
            nonlocal record
            old = msgspec.json.decode(data, type=ApiKey)
            record = ended(old)
            return None if record == old else msgspec.json.encode(record)

        await self._change(place, end)
        assert record is not None
        return record

    # -- machines that request keys --

    async def approve_device(self, user_code: str, approval: DeviceApproval) -> bool:
        """Store an approval, and remove expired ones. Returns False if this code has an approval."""
        now = datetime.now(UTC)
        for entry in await self._entries("device.*"):
            if msgspec.json.decode(entry.data, type=DeviceApproval).expires_at <= now:
                await self._delete([key_of(entry.subject)])
        return await self._create(_device(user_code), approval)

    async def device_approval(self, user_code: str) -> DeviceApproval | None:
        """Return the approval of this code; None if it has none, or an expired one."""
        approval = await self._get(_device(user_code), DeviceApproval)
        return None if approval is None or approval.expires_at <= datetime.now(UTC) else approval

    async def take_device_approval(self, user_code: str) -> bool:
        """Remove the approval of this code. Returns False if another call removed it first."""
        return await self._take(_device(user_code))

    # -- keys of judges' APIs --

    async def put_judge_key(self, org: str, name: str, key: str, *, origin: str) -> None:
        """Keep the key of a judge's API under a name of the organisation, in place of an earlier one.

        It is sealed together with its origin (`synth.outbound.http_guard.origin_of`), so that neither can be changed
        alone.
        """
        await self._put(f"judge.{org}.{name}", self._seal(JudgeKey(key=key, origin=origin), Purpose.JUDGE_KEYS))

    async def judge_key(self, org: str, name: str) -> JudgeKey | None:
        """Return the key of this name. Raises `InvalidKey` under another secret."""
        result = await self._read(f"judge.{org}.{name}")
        return None if result is None else self._unseal(result, JudgeKey, Purpose.JUDGE_KEYS)

    async def judge_keys(self, org: str) -> list[str]:
        """Return the names of the organisation's keys of judges."""
        return sorted(m.subject.rsplit(".", 1)[-1] for m in await self._entries(f"judge.{org}.*"))

    async def remove_judge_key(self, org: str, name: str) -> bool:
        """Forget a key of a judge; False when the organisation has none of this name."""
        if name not in await self.judge_keys(org):
            return False
        await self._delete([f"judge.{org}.{name}"])
        return True


def _record(
    org: OrgId,
    key: str,
    *,
    name: str,
    scopes: tuple[Scope, ...],
    by: str,
    expires_at: datetime | None = None,
) -> ApiKey:
    return ApiKey(
        org=org,
        key_id=key_id(key),
        digest=key_hash(key),
        name=name,
        scopes=scopes,
        created_at=datetime.now(UTC),
        created_by=by,
        expires_at=expires_at,
    )


def _device(user_code: str) -> str:
    # The code opens an organisation, so the bucket holds its hash alone.
    return f"device.{key_hash(user_code)}"


def _place(org: str, digest: str) -> str:
    return f"api.{org}.{digest}"
