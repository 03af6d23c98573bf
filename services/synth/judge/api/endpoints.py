"""Finds the API behind a judge: an operator's provider, a model of this cluster, or the user's own address."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial

import httpx

from synth.bus.connection import Connection
from synth.bus.kv.replicas import Replica, ReplicaTable
from synth.bus.kv.secrets import JudgeKey, SecretStore
from synth.errors import InvalidKey
from synth.judge.api.breaker import CircuitBreaker
from synth.judge.api.connections import OrgConnections
from synth.judge.api.limiter import ApiLimiter
from synth.judge.api.limits import ApiLimits
from synth.judge.failures import away, refused
from synth.judge.settings import SYNTH, JudgeSettings
from synth.judging.settings import JudgeModel
from synth.outbound.aiohttp_transport import AiohttpTransport
from synth.outbound.http_guard import names_allowed_address, origin_of, read_url
from synth.outbound.service_calls import CallSigner

_MAX_OPEN_S = 60.0
#: The state of an API without calls for this long is dropped here; the state that replicas share is in its record.
_FORGET_S = 600.0


@dataclass(frozen=True)
class ModelQuirks:
    """The fields that an API has refused for a model; it answered without them."""

    schema: bool = True
    tokens_field: str = "max_tokens"


@dataclass
class JudgeApi:
    """The state that this process keeps of one API, for all organisations.

    new_breaker: makes a breaker; breakers: by model, quirks: by organisation and model, so that the refused fields of
    one organisation's calls change nothing for another.
    """

    limiter: ApiLimiter
    new_breaker: Callable[[], CircuitBreaker]
    breakers: dict[str, CircuitBreaker] = field(default_factory=dict[str, CircuitBreaker])
    quirks: dict[tuple[str, str], ModelQuirks] = field(default_factory=dict[tuple[str, str], ModelQuirks])
    used_at: float = 0.0

    @property
    def open(self) -> bool:
        """Whether any model of it is left alone."""
        return any(breaker.open for breaker in self.breakers.values())

    def breaker(self, model: str) -> CircuitBreaker:
        """Return the breaker of a model. Drops the other breakers without failures: users can invent model names."""
        breaker = self.breakers.get(model)
        if breaker is None:
            self.breakers = {name: known for name, known in self.breakers.items() if not known.quiet}
            breaker = self.breakers[model] = self.new_breaker()
        return breaker


@dataclass(frozen=True)
class JudgeEndpoint:
    """One judge, ready for calls. identity: of its API; where: the name in errors; key: secret, must not be shown.

    prices: of a prompt token and of a completion token. connection: the client for one call, entered when it may be
    made. url: None if a replica is chosen for each call.
    """

    identity: str
    where: str
    model: str
    connection: Callable[[], AbstractAsyncContextManager[httpx.AsyncClient]]
    api: JudgeApi
    org: str
    url: str | None = None
    key: str = ""
    prices: tuple[float, float] = (0.0, 0.0)

    @property
    def quirks(self) -> ModelQuirks:
        return self.api.quirks.get((self.org, self.model), ModelQuirks())

    @property
    def breaker(self) -> CircuitBreaker:
        return self.api.breaker(self.model)

    def remember(self, quirks: ModelQuirks) -> None:
        """Remember the quirks with which the API has answered a call."""
        if quirks != self.quirks:
            self.api.quirks[self.org, self.model] = quirks


@dataclass(frozen=True, kw_only=True)
class Endpoints:
    """The judges' APIs, as this process sees them. replica: this process, never the same again after a restart."""

    bus: Connection
    secrets: SecretStore
    replicas: ReplicaTable
    settings: JudgeSettings
    calls: CallSigner
    replica: str
    guarded: OrgConnections
    _apis: dict[str, JudgeApi] = field(default_factory=dict[str, JudgeApi])
    _inside: httpx.AsyncClient = field(
        default_factory=lambda: httpx.AsyncClient(transport=AiohttpTransport(), timeout=None, trust_env=False)
    )

    async def close(self) -> None:
        """Drop the connections."""
        await self._inside.aclose()
        await self.guarded.aclose()

    async def resolve(self, judge: JudgeModel, *, org: str) -> JudgeEndpoint:
        """Return the API of a judge of this organisation. Raises `JudgeTrouble`: refused, with the reason."""
        if judge.url is not None:
            return await self._of_user(judge, judge.url, org)
        if judge.provider is None:
            raise refused(
                "the judge names neither a provider nor a url",
                where=f"judge {judge.model!r}",
                expected=f'provider = "{SYNTH}" for a model of this cluster, or one of {self._names()}',
            )
        if judge.provider == SYNTH:
            identity = f"synth {org} {judge.model}"
            return JudgeEndpoint(
                identity=identity,
                where=f"judge {judge.model!r} of this cluster",
                model=judge.model,
                connection=self._connect_inside,
                api=self._api(identity, ApiLimits()),
                org=org,
            )
        return self._of_operator(judge, judge.provider, org)

    def next_call(self, endpoint: JudgeEndpoint) -> tuple[str, dict[str, str]]:
        """Return the address and the headers of the next call.

        Raises `JudgeTrouble`: away, if no replica serves the cluster's models.
        """
        if endpoint.url is not None:
            key = {"authorization": f"Bearer {endpoint.key}"} if endpoint.key else {}
            return f"{endpoint.url}/chat/completions", key
        replica = _choose(self.replicas, endpoint.model)
        if replica is None:
            raise away(
                "no inference process is running", where=endpoint.where, retry_after_s=5, fix="start `synthd inference`"
            )
        token = self.calls.authorization(replica.recorder, endpoint.org)
        return f"{replica.url}/v1/chat/completions", {"authorization": token, "x-synth-org": endpoint.org}

    def _of_operator(self, judge: JudgeModel, name: str, org: str) -> JudgeEndpoint:
        where = f"judge {judge.model!r} of {name!r}"
        provider = self.settings.judge_providers.get(name)
        if provider is None:
            raise refused(
                f"this cluster has no judge provider {name!r}",
                where=where,
                expected=f"one of {self._names()}",
                fix="the operator adds one with SYNTH_JUDGE_PROVIDERS; or give the judge a url and a key of your own",
            )
        if provider.models is not None and judge.model not in provider.models:
            raise refused(
                f"the provider {name!r} is not open for the model {judge.model!r}",
                where=where,
                expected=f"one of {', '.join(provider.models)}",
            )
        identity = f"provider {name}"
        return JudgeEndpoint(
            identity=identity,
            where=where,
            model=judge.model,
            connection=self._connect_inside,
            api=self._api(identity, ApiLimits(rate=provider.requests_per_second, concurrency=provider.max_concurrency)),
            org=org,
            url=provider.base_url.rstrip("/"),
            key=provider.api_key.get_secret_value(),
            prices=(
                provider.price_per_million_prompt_tokens / 1e6,
                provider.price_per_million_completion_tokens / 1e6,
            ),
        )

    async def _of_user(self, judge: JudgeModel, address: str, org: str) -> JudgeEndpoint:
        url = address.rstrip("/").removesuffix("/chat/completions")
        where = f"judge {judge.model!r} at {url}"
        key = ""
        if judge.key is not None:
            try:
                stored = await self.secrets.judge_key(org, judge.key)
            except InvalidKey as error:
                raise refused(f"the key {judge.key!r} cannot be opened: {error}", where=where) from error
            if stored is None:
                raise refused(
                    f"your organisation has no key {judge.key!r}",
                    where=where,
                    fix=f"`synthctl keys judge add {judge.key} --url {origin_of(url) or url}` stores it",
                )
            key = await self._openable(judge.key, stored, url, where)
        identity = f"url {org} {url}"
        api = self._api(identity, ApiLimits())
        return JudgeEndpoint(
            identity=identity,
            where=where,
            model=judge.model,
            connection=partial(self.guarded.use, org),
            api=api,
            org=org,
            url=url,
            key=key,
        )

    async def _openable(self, name: str, stored: JudgeKey, url: str, where: str) -> str:
        """Return the key, if it may be sent to this address. Raises `JudgeTrouble` if not."""
        origin = origin_of(url)
        if origin != stored.origin:
            raise refused(
                f"the key {name!r} was stored for {stored.origin} and is sent nowhere else",
                where=where,
                expected=f"a url that begins with {stored.origin}",
                fix=f"correct the url, or store its key: `synthctl keys judge add NAME --url {origin or url}`",
            )
        read = read_url(url)
        if (read is None or read.scheme != "https") and not await names_allowed_address(self.settings.guard, url):
            raise refused(
                f"the key {name!r} would be sent unencrypted",
                where=where,
                expected="an https url",
                fix="use https; plain http is for addresses that the operator has opened (SYNTH_ALLOWED_CIDRS)",
            )
        return stored.key

    def _connect_inside(self) -> AbstractAsyncContextManager[httpx.AsyncClient]:
        return nullcontext(self._inside)

    def _names(self) -> str:
        return ", ".join(sorted([*self.settings.judge_providers, SYNTH]))

    def _api(self, identity: str, limits: ApiLimits) -> JudgeApi:
        now = time.monotonic()
        api = self._apis.get(identity)
        if api is None:
            for name, known in list(self._apis.items()):
                if now - known.used_at >= _FORGET_S and known.limiter.idle and not known.open:
                    del self._apis[name]
            settings = self.settings
            api = self._apis[identity] = JudgeApi(
                limiter=ApiLimiter(
                    self.bus,
                    f"limit.{hashlib.sha256(identity.encode()).hexdigest()}",
                    limits,
                    replica=self.replica,
                    margin_s=settings.judge_rate_margin_s,
                    patience_s=settings.judge_patience_s,
                ),
                new_breaker=lambda: CircuitBreaker(
                    failures=settings.judge_breaker_failures,
                    open_s=settings.judge_breaker_s,
                    max_open_s=max(settings.judge_breaker_s, _MAX_OPEN_S),
                ),
            )
        api.used_at = now
        return api


def _choose(replicas: ReplicaTable, model: str) -> Replica | None:
    """Return the least busy replica that has the model; else always the same one, so that not every one loads it."""
    if serving := replicas.serving(model):
        return serving[0]
    cold = replicas.alive()
    return max(cold, key=lambda r: hashlib.blake2b(f"{r.id}\0{model}".encode()).digest()) if cold else None
