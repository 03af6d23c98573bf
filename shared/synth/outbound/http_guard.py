"""HTTP to addresses that users name: task apps, judges, images. It cannot reach inside the cluster's network.

Invariants. A host is resolved once, and the connection goes to exactly the checked address, so that a name
cannot answer with another one later; a proxy that the operator names is given that address, too, and no name. An
address that is not public is refused unless the cluster's settings allow it. No redirect is followed, no proxy of the
environment is used, and an answer is cut off at a size and at a time.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, cast

import httpcore
import httpx
from pydantic import Field, field_validator
from pydantic_settings import NoDecode

from synth.errors import SynthError
from synth.outbound.answer_memory import AnswerRoom
from synth.outbound.name_lookups import name_lookups
from synth.outbound.reply_body import read_body
from synth.outbound.special_addresses import Network, is_loopback, is_metadata, is_public, parse_address
from synth.outbound.tls import tls_context
from synth.settings import Settings


class AddressRefused(httpx.ConnectError, SynthError):
    """The host's address is not public, and the settings do not allow it. address: the one that was refused."""

    def __init__(self, host: str, address: str) -> None:
        super().__init__(f"{host} is at {address}, which is not a public address")
        self.host = host
        self.address = address


@dataclass(frozen=True)
class GuardPolicy:
    """The addresses that may be reached beside the public ones. proxy: the proxy's URL for public addresses, or ""."""

    allowed: tuple[Network, ...] = ()
    allow_loopback: bool = False
    proxy: str = field(default="", repr=False)

    def opens(self, address: str) -> bool:
        """Return whether the settings name this IP address, public or not: it is the operator's own.

        An address from which a cloud serves secrets must be named itself; a network that contains it does not open it.
        """
        ip = parse_address(address)
        if is_metadata(ip):
            return any(ip in network and network.num_addresses == 1 for network in self.allowed)
        return any(ip in network for network in self.allowed) or (is_loopback(ip) and self.allow_loopback)

    def admits(self, address: str) -> bool:
        """Return whether a connection to this IP address may be opened."""
        return self.opens(address) or is_public(parse_address(address))


def read_url(url: str) -> httpx.URL | None:
    """Read a URL as the HTTP client reads it, its host included; None if the client cannot."""
    try:
        read = httpx.URL(url)
        # The client decodes the name only here. An `xn--` name without valid Punycode is an error.
        _ = read.host
    except (httpx.InvalidURL, UnicodeError):
        return None
    return read


def origin_of(url: str) -> str | None:
    """Return the scheme, host and port of a URL, such as `https://api.example.com:8443`; None for no address of HTTP.

    It is read as the HTTP client reads it, so that the checked host is the called one.
    """
    parts = read_url(url)
    if parts is None or parts.scheme not in ("http", "https") or not parts.host or parts.userinfo:
        return None
    host = f"[{parts.host}]" if ":" in parts.host else parts.host
    return f"{parts.scheme}://{host}" + ("" if parts.port is None else f":{parts.port}")


async def names_allowed_address(policy: GuardPolicy, url: str, *, timeout: float = 10.0) -> bool:
    """Return whether a URL's host has only addresses that the settings have opened; False if it has none."""
    parts = read_url(url)
    if parts is None:
        return False
    try:
        addresses = await _resolve(parts.host, parts.port or 80, timeout)
    except (httpcore.ConnectError, httpcore.ConnectTimeout):
        return False
    return all(policy.opens(address) for address in addresses)


class GuardSettings(Settings):
    """Settings of every service that calls addresses of users."""

    allowed_cidrs: Annotated[tuple[Network, ...], NoDecode] = ()
    """Networks that task apps, judges and images may be in beside the public internet: `10.1.0.0/16,fd00::/8`. The
    address of a cloud's metadata is opened only by itself, as `169.254.169.254/32`."""

    allow_loopback: bool = False
    """Whether task apps and images may be on this machine; the embedded cluster sets it."""

    outbound_proxy: str = Field(default="", repr=False)
    """The HTTP proxy to public addresses of task apps, judges and images: `http://user:password@proxy.example:3128`, or
    `https://…`. It must allow CONNECT to IP addresses: the cluster resolves a name, checks the address, and gives the
    proxy this address. Loopback, the networks of `SYNTH_ALLOWED_CIDRS` and the APIs of `SYNTH_JUDGE_PROVIDERS` are
    called without it. No service reads `HTTP_PROXY`."""

    @field_validator("outbound_proxy")
    @classmethod
    def _check_proxy(cls, value: str) -> str:
        url = read_url(value)
        if value and (url is None or url.scheme not in ("http", "https") or not url.host):
            raise ValueError("not the address of a proxy; expected a URL such as http://proxy.example:3128")
        return value

    @field_validator("allowed_cidrs", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value

    @property
    def guard(self) -> GuardPolicy:
        """The policy that these settings make."""
        return GuardPolicy(self.allowed_cidrs, self.allow_loopback, self.outbound_proxy)


def guarded_client(
    policy: GuardPolicy,
    *,
    headers: Mapping[str, str] | None = None,
    timeout: float | None = 10.0,
    max_connections: int = 100,
) -> httpx.AsyncClient:
    """Return a client that reaches only addresses of the policy; others raise `AddressRefused`. timeout: seconds a
    phase; None if the caller bounds the whole."""
    return _GuardedClient(
        transport=guarded_transport(policy, max_connections=max_connections),
        headers=headers,
        timeout=timeout,
        follow_redirects=False,
        trust_env=False,
    )


@dataclass(frozen=True)
class Fetched:
    """A small answer, read whole. location: the target of a redirect."""

    status: int
    body: bytes
    location: str | None = None


async def fetch(
    client: httpx.AsyncClient,
    url: httpx.URL,
    *,
    headers: Mapping[str, str],
    limit: int,
    deadline: float,
    room: AnswerRoom | None = None,
) -> Fetched:
    """GET at most `limit` bytes within `deadline` seconds in all. room: as in `read_body`.

    Raises httpx.HTTPError (with `AddressRefused`, and as `read_body`) and `TimeoutError`.
    """
    # Compression costs more here than it saves; the answer of an app that compresses all the same is read.
    requested = {**headers, "Accept-Encoding": "identity"}
    async with asyncio.timeout(deadline), client.stream("GET", url, headers=requested) as reply:
        body = await read_body(reply, limit, room)
        return Fetched(reply.status_code, body, reply.headers.get("location"))


class _GuardedBackend(httpcore.AsyncNetworkBackend):
    """Resolves a host, checks its address, and connects to the checked one."""

    def __init__(self, policy: GuardPolicy) -> None:
        self._policy = policy
        self._inner = cast(httpcore.AsyncNetworkBackend, httpcore.AnyIOBackend())

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        *others, last = _admitted(self._policy, host, await _resolve(host, port, timeout))
        for address in others:
            # A name such as localhost stands for an IPv6 and an IPv4 address, and often only one of them listens.
            with contextlib.suppress(httpcore.ConnectError, httpcore.ProxyError):
                return await self._connect(address, port, timeout, local_address, socket_options)
        return await self._connect(last, port, timeout, local_address, socket_options)

    async def _connect(
        self,
        address: str,
        port: int,
        timeout: float | None,
        local_address: str | None,
        socket_options: Iterable[Any] | None,
    ) -> httpcore.AsyncNetworkStream:
        if not self._policy.proxy or self._policy.opens(address):
            return await self._inner.connect_tcp(address, port, timeout, local_address, socket_options)
        return await _tunnel(self._inner, httpx.Proxy(self._policy.proxy), address, port, timeout)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


async def _tunnel(
    backend: httpcore.AsyncNetworkBackend, proxy: httpx.Proxy, address: str, port: int, timeout: float | None
) -> httpcore.AsyncNetworkStream:
    """Open a connection to an IP address through a proxy. Raises `httpcore.ProxyError` if the proxy refuses."""
    url = proxy.url
    origin = httpcore.URL(scheme=url.scheme, host=url.host, port=url.port, target=b"/").origin
    target = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
    headers: dict[str | bytes, str | bytes] = {"Host": target}
    if proxy.auth is not None:
        credentials = base64.b64encode(":".join(proxy.auth).encode()).decode()
        headers["Proxy-Authorization"] = f"Basic {credentials}"
    request = httpcore.Request(
        "CONNECT",
        httpcore.URL(scheme=url.scheme, host=url.host, port=url.port, target=target),
        headers=headers,
        extensions={"timeout": dict.fromkeys(("connect", "read", "write", "pool"), timeout)},
    )
    connection = httpcore.AsyncHTTPConnection(origin=origin, network_backend=backend, ssl_context=tls_context())
    try:
        reply = await connection.handle_async_request(request)
        if not 200 <= reply.status < 300:
            raise httpcore.ProxyError(f"the cluster's outbound proxy answers {reply.status}")
    except BaseException:
        await connection.aclose()
        raise
    # The stream is the caller's from now on, and closes the connection.
    extensions = cast(dict[str, httpcore.AsyncNetworkStream], reply.extensions)  # pyright: ignore[reportUnknownMemberType]
    return extensions["network_stream"]


class _GuardedClient(httpx.AsyncClient):
    async def send(self, request: httpx.Request, **kwargs: Any) -> httpx.Response:
        # httpx computes the target of a redirect although it does not follow it, and some locations, such as
        # `https:elsewhere`, raise InvalidURL or UnicodeError there, which is no HTTPError.
        try:
            return await super().send(request, **kwargs)
        except (httpx.InvalidURL, UnicodeError) as error:
            raise httpx.RemoteProtocolError(f"a redirect to no URL: {error}", request=request) from error


def guarded_transport(policy: GuardPolicy, *, max_connections: int) -> httpx.AsyncBaseTransport:
    """Return the transport of `guarded_client`."""
    if policy.proxy:
        return _ProxiedTransport(policy, max_connections)
    from synth.outbound.aiohttp_transport import AiohttpTransport  # the client runs without aiohttp

    async def resolve(host: str, port: int) -> list[str]:
        try:
            addresses = await name_lookups().addresses(host, port)
        except (OSError, UnicodeError) as error:
            raise httpx.ConnectError(f"{host} cannot be resolved: {error}") from error
        return _admitted(policy, host, addresses)

    def check(address: str) -> None:
        _admitted(policy, address, [address])

    return AiohttpTransport(max_connections=max_connections, resolve=resolve, check_address=check)


def _admitted(policy: GuardPolicy, host: str, addresses: list[str]) -> list[str]:
    """Return the addresses of a host that the policy admits. Raises `AddressRefused` if it admits none."""
    admitted = [a for a in addresses if policy.admits(a)]
    if not admitted:
        raise AddressRefused(host, addresses[0])
    return admitted


class _ProxiedTransport(httpx.AsyncHTTPTransport):
    """The operator's proxy is given the checked address. aiohttp would give it the name."""

    def __init__(self, policy: GuardPolicy, max_connections: int) -> None:
        super().__init__(verify=tls_context(), trust_env=False)
        # httpx has no argument for the network backend of its pool.
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=tls_context(),
            max_connections=max_connections,
            max_keepalive_connections=20,
            keepalive_expiry=5.0,
            network_backend=_GuardedBackend(policy),
        )


async def _resolve(host: str, port: int, timeout: float | None) -> list[str]:
    try:
        async with asyncio.timeout(timeout):
            return await name_lookups().addresses(host, port)
    except TimeoutError as error:
        raise httpcore.ConnectTimeout(f"{host} was not resolved in time") from error
    except (OSError, UnicodeError) as error:
        raise httpcore.ConnectError(f"{host} cannot be resolved: {error}") from error
