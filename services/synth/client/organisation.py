"""The organisation: its traces and its keys, and what only an operator may do."""

from __future__ import annotations

from builtins import list as List
from collections.abc import AsyncGenerator
from datetime import datetime
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from synth.access import Organisation
from synth.api.audit import AuditRecord
from synth.api.dead_letters import DeadLetter, DeadLetterPayload, SettledLetter
from synth.api.schemas import ApprovedDevice, Key, MadeKey, MadeOrganisation
from synth.api.traces import TraceDetail, TraceSummary
from synth.client.api import LONG_TIMEOUT_S, Api
from synth.client.transports import Blocking, blocking, blocking_iterator

T = TypeVar("T")


class StoredJudgeKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key that was just stored. origin: scheme, host and port, the one place that it is sent to."""

    name: str
    origin: str


class JudgeKeyName(msgspec.Struct, frozen=True, kw_only=True):
    """A stored key. The API returns only its name."""

    name: str


class AsyncTraces:
    """Traces: rollouts that were kept whole."""

    def __init__(self, api: Api) -> None:
        self._api = api

    async def list(self, *, limit: int | None = None, **filters: Any) -> AsyncGenerator[TraceSummary]:
        """Yield traces; pages are read as they are needed.

        limit: at most so many. filters: the parameters of `GET /api/traces`, such as `job="job_…"`.
        """
        async for trace in self._api.pages("/traces", TraceSummary, limit=limit, params=filters, usual=LONG_TIMEOUT_S):
            yield trace

    async def get(self, trace_id: str) -> TraceDetail:
        """Read one trace with its conversation."""
        return await self._api.request("GET", f"/traces/{quote(trace_id, safe='')}", TraceDetail, usual=LONG_TIMEOUT_S)


class Traces(Blocking):
    """Traces: rollouts that were kept whole."""

    list = blocking_iterator(AsyncTraces.list)
    get = blocking(AsyncTraces.get)


class AsyncKeys:
    """The organisation's API keys, and the keys of task apps and judges that the cluster stores for it."""

    def __init__(self, api: Api) -> None:
        self._api = api

    async def list(self) -> List[Key]:
        """List the API keys, oldest first."""
        return await self._api.list_of("/keys", Key)

    async def create(self, *, org: str | None = None, **body: Any) -> MadeKey:
        """Make a key of this organisation, or, as an operator, of another one. body: as `POST /api/keys` takes it."""
        path = f"/organisations/{quote(org, safe='')}/keys" if org else "/keys"
        return await _post_once(self._api, path, MadeKey, body)

    async def rotate(self, key_id: str, *, grace_s: int) -> MadeKey:
        """Replace a key, which opens the API for `grace_s` more seconds."""
        return await _post_once(self._api, f"/keys/{quote(key_id, safe='')}/rotate", MadeKey, {"grace_s": grace_s})

    async def revoke(self, key_id: str) -> Key:
        """Revoke a key."""
        return await self._api.request("DELETE", f"/keys/{quote(key_id, safe='')}", Key)

    async def approve_device(self, code: str) -> ApprovedDevice:
        """Approve a machine that requests keys."""
        return await _post_once(self._api, "/keys/approve", ApprovedDevice, {"code": code})

    async def add_environment_key(self, key: str, url: str | None) -> None:
        """Store the key of the task app at `url`, which alone it is sent to; None: of the first app that it opens."""
        await self._api.send("POST", "/environment-keys", json={"key": key, "url": url})

    async def add_judge_key(self, name: str, key: str, *, url: str) -> StoredJudgeKey:
        """Store a key for the judge's API at this address, in place of an earlier one of this name."""
        body = {"name": name, "key": key, "url": url}
        return await self._api.request("POST", "/judge-keys", StoredJudgeKey, json=body)

    async def judge_keys(self) -> List[JudgeKeyName]:
        """List the names of the stored keys of judges."""
        return await self._api.list_of("/judge-keys", JudgeKeyName)

    async def remove_judge_key(self, name: str) -> JudgeKeyName:
        """Forget a key of a judge."""
        return await self._api.request("DELETE", f"/judge-keys/{quote(name, safe='')}", JudgeKeyName)


class Keys(Blocking):
    """The organisation's API keys, and the keys of task apps and judges that the cluster stores for it."""

    list = blocking(AsyncKeys.list)
    create = blocking(AsyncKeys.create)
    rotate = blocking(AsyncKeys.rotate)
    revoke = blocking(AsyncKeys.revoke)
    approve_device = blocking(AsyncKeys.approve_device)
    add_environment_key = blocking(AsyncKeys.add_environment_key)
    add_judge_key = blocking(AsyncKeys.add_judge_key)
    judge_keys = blocking(AsyncKeys.judge_keys)
    remove_judge_key = blocking(AsyncKeys.remove_judge_key)


class AsyncOperator:
    """What an operator's key opens: organisations, the audit stream and dead letters."""

    def __init__(self, api: Api) -> None:
        self._api = api

    async def organisations(self) -> List[Organisation]:
        """List every organisation of the cluster."""
        return await self._api.list_of("/organisations", Organisation)

    async def add_organisation(self, name: str) -> MadeOrganisation:
        """Make an organisation."""
        return await _post_once(self._api, "/organisations", MadeOrganisation, {"name": name})

    async def audit(self, *, since: datetime, org: str | None = None) -> AsyncGenerator[AuditRecord]:
        """Yield every audit record since a time, oldest first. org: of one organisation, for an operator."""
        params = {"since": since.isoformat(), "org": org}
        async for record in self._api.pages("/audit", AuditRecord, params=params):
            yield record

    async def dead_letters(self, *, limit: int | None = None, settled: bool = False) -> AsyncGenerator[DeadLetter]:
        """Yield dead letters, oldest first. settled: include settled ones."""
        async for letter in self._api.pages("/dead-letters", DeadLetter, limit=limit, params={"settled": settled}):
            yield letter

    async def dead_letter(self, id: int) -> DeadLetterPayload:
        """Read one letter, with its payload."""
        return await self._api.request("GET", f"/dead-letters/{id}", DeadLetterPayload)

    async def retry_letter(self, id: int) -> SettledLetter:
        """Have a letter handled again."""
        return await self._api.request("POST", f"/dead-letters/{id}/retry", SettledLetter)

    async def drop_letter(self, id: int) -> SettledLetter:
        """Settle a letter."""
        return await self._api.request("POST", f"/dead-letters/{id}/drop", SettledLetter)


class Operator(Blocking):
    """What an operator's key opens: organisations, the audit stream and dead letters."""

    organisations = blocking(AsyncOperator.organisations)
    add_organisation = blocking(AsyncOperator.add_organisation)
    audit = blocking_iterator(AsyncOperator.audit)
    dead_letters = blocking_iterator(AsyncOperator.dead_letters)
    dead_letter = blocking(AsyncOperator.dead_letter)
    retry_letter = blocking(AsyncOperator.retry_letter)
    drop_letter = blocking(AsyncOperator.drop_letter)


async def _post_once(api: Api, path: str, type: type[T], body: dict[str, Any]) -> T:
    """Post without a retry: the answer holds a secret that is shown once."""
    return await api.request("POST", path, type, json=body, budget=0)
