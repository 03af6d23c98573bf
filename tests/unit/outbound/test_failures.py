"""The cause of a connection that fails, in words, for the calls of services."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from synth.outbound.failures import reason_of, remedy_of
from synth.outbound.http_guard import GuardPolicy, guarded_client
from tests.service.bus.access.certificates import Authority


async def failure(url: str) -> httpx.TransportError:
    async with guarded_client(GuardPolicy(allow_loopback=True), timeout=10) as client:
        with pytest.raises(httpx.TransportError) as caught:
            await client.get(url)
    return caught.value


@asynccontextmanager
async def server(tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """A server that answers each connection with an error; yields its port."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0, ssl=tls) as listening:
        yield listening.sockets[0].getsockname()[1]


async def test_a_port_where_nothing_listens():
    assert reason_of(await failure("http://127.0.0.1:9")) == "nothing listens at this address"


async def test_a_host_that_has_no_address():
    assert reason_of(await failure("http://nowhere.invalid")) == "no address is known for this host's name"


async def test_https_to_a_server_that_speaks_http():
    async with server() as port:
        error = await failure(f"https://127.0.0.1:{port}")
    assert reason_of(error) == "what answers does not speak TLS as https needs it"


async def test_a_certificate_that_nobody_trusts(tmp_path: Path):
    own = Authority.at(tmp_path, "ca").sign("server")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(own.cert, own.key)
    async with server(tls) as port:
        error = await failure(f"https://127.0.0.1:{port}")
    assert reason_of(error) == "its certificate is not trusted: unable to get local issuer certificate"
    assert remedy_of(error) == "name the CA that signed it in SSL_CERT_FILE, or correct the address"


async def test_an_address_that_is_not_allowed_and_a_connection_that_is_cut():
    async with guarded_client(GuardPolicy(), timeout=10) as client:
        with pytest.raises(httpx.TransportError) as refused:
            await client.get("http://127.0.0.1:9")
    assert "is not a public address" in reason_of(refused.value)
    assert reason_of(httpx.ReadError("")) == "the connection was closed"
