"""A user's URL cannot reach inside."""

from __future__ import annotations

import asyncio
import ipaddress
import socket

import httpx
import pytest

from synth.errors import UserError
from synth.outbound.http_guard import AddressRefused, GuardPolicy, GuardSettings, guarded_client, names_allowed_address


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.0.0.1",
        "172.16.3.4",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "0.0.0.0",
        "0.1.2.3",
        "100.100.100.200",
        "168.63.129.16",
        "192.0.0.9",
        "192.0.0.192",
        "192.0.2.1",
        "192.31.196.1",
        "192.52.193.1",
        "192.175.48.1",
        "198.18.0.1",
        "198.19.255.255",
        "198.51.100.1",
        "203.0.113.1",
        "239.1.2.3",
        "240.0.0.1",
        "224.0.0.1",
        "255.255.255.255",
        "192.88.99.1",
        "::1",
        "::",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "::127.0.0.1",
        "64:ff9b::7f00:1",
        "::ffff:168.63.129.16",
        "::ffff:0:127.0.0.1",
        "64:ff9b::808:808",
        "64:ff9b:1::1",
        "100::1",
        "2001:1::1",
        "2001:2::1",
        "2001:10::1",
        "2001:20::1",
        "2001:db8::1",
        "2002:7f00:1::",
        "2002:808:808::",
        "2620:4f:8000::1",
        "3fff::1",
        "4000::1",
        "5f00::1",
        "fec0::1",
        "fd00:ec2::254",
        "2001:0:7f00:1::",
        "fe80::1",
        "fe80::1%2",
        "fc00::1",
        "ff0e::1",
    ],
)
def test_an_address_that_is_not_public_is_refused(address):
    assert not GuardPolicy().admits(address)


@pytest.mark.parametrize(
    "address",
    ["1.1.1.1", "8.8.8.8", "::ffff:8.8.8.8", "100.128.0.1", "168.63.129.17", "2001:4860:4860::8888", "2606:4700::1111"],
)
def test_a_public_address_is_admitted(address):
    assert GuardPolicy().admits(address)


def test_only_what_the_settings_allow_is_admitted_beside(monkeypatch):
    monkeypatch.setenv("SYNTH_ALLOWED_CIDRS", "10.1.0.0/16, fd00::/8")
    monkeypatch.setenv("SYNTH_ALLOW_LOOPBACK", "1")
    guard = GuardSettings().guard
    assert guard == GuardPolicy((ipaddress.ip_network("10.1.0.0/16"), ipaddress.ip_network("fd00::/8")), True)
    assert all(guard.admits(a) for a in ("10.1.2.3", "::ffff:10.1.2.3", "fd12::1", "127.0.0.1", "::1"))
    assert not any(guard.admits(a) for a in ("10.2.0.1", "fc00::1", "169.254.169.254"))


def test_an_address_of_a_clouds_metadata_is_opened_by_itself_alone(monkeypatch):
    monkeypatch.setenv("SYNTH_ALLOWED_CIDRS", "169.254.0.0/16,100.64.0.0/10,fd00::/8,0.0.0.0/0")
    guard = GuardSettings().guard
    assert all(guard.admits(a) for a in ("169.254.1.1", "100.64.0.1", "fd00::1"))
    assert not any(guard.admits(a) for a in ("169.254.169.254", "100.100.100.200", "fd00:ec2::254", "168.63.129.16"))
    assert not guard.admits("::ffff:169.254.169.254")
    monkeypatch.setenv("SYNTH_ALLOWED_CIDRS", "169.254.169.254/32")
    assert GuardSettings().guard.admits("169.254.169.254")


def test_what_is_public_does_not_change_with_the_version_of_python(monkeypatch):
    for kind in (ipaddress.IPv4Address, ipaddress.IPv6Address):
        for word in ("is_global", "is_private", "is_reserved", "is_multicast", "is_link_local", "is_loopback"):
            monkeypatch.setattr(kind, word, property(lambda _: pytest.fail("Python was asked")))
    assert GuardPolicy().admits("8.8.8.8")
    assert not GuardPolicy(allow_loopback=True).admits("10.0.0.1")
    assert GuardPolicy(allow_loopback=True).admits("127.0.0.1")


def test_a_network_that_is_none_is_an_error_at_the_start(monkeypatch):
    monkeypatch.setenv("SYNTH_ALLOWED_CIDRS", "10.1.0.0/160")
    with pytest.raises(UserError, match="SYNTH_ALLOWED_CIDRS"):
        GuardSettings()


async def test_a_name_is_resolved_once_and_the_connection_goes_to_what_was_looked_at(monkeypatch):
    looked: list[str] = []

    def resolve(host: str, port: int, **_: object):
        looked.append(host)
        # First an address that may be reached; whoever asked again would be sent inside.
        address = "127.0.0.1" if len(looked) == 1 else "10.0.0.1"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    async with guarded_client(GuardPolicy(allow_loopback=True)) as client:
        assert (await client.get(f"http://rebinding.example:{port}/")).text == "ok"
        assert looked == ["rebinding.example"]
        with pytest.raises(AddressRefused, match=r"10\.0\.0\.1"):
            await client.get(f"http://rebinding.example:{port}/")
    server.close()


async def test_the_server_that_is_called_by_its_address_is_told_the_name(monkeypatch):
    said: list[bytes] = []

    def resolve(host: str, port: int, **_: object):
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        said.append(await reader.read(65536))
        writer.close()

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    async with guarded_client(GuardPolicy(allow_loopback=True)) as client:
        for scheme in ("http", "https"):
            with pytest.raises(httpx.TransportError):
                await client.get(f"{scheme}://app.example:{port}/")
    assert f"host: app.example:{port}".encode() in said[0].lower()
    # The name in the hello of TLS, for which the certificate must be.
    assert said[-1].startswith(b"\x16\x03")
    assert b"app.example" in said[-1]
    server.close()


@pytest.mark.parametrize(
    ("url", "loopback", "cidrs", "opened"),
    [
        ("http://127.0.0.1:9/v1", True, (), True),
        ("http://127.0.0.1:9/v1", False, (), False),
        ("http://[::1]/v1", True, (), True),
        ("http://10.1.2.3/v1", False, ("10.1.0.0/16",), True),
        ("http://10.2.2.3/v1", False, ("10.1.0.0/16",), False),
        ("http://192.0.43.8/v1", True, (), False),
    ],
)
async def test_a_public_address_is_not_one_that_the_operator_opened(url, loopback: bool, cidrs, opened: bool):
    allowed = tuple(ipaddress.ip_network(cidr) for cidr in cidrs)
    assert await names_allowed_address(GuardPolicy(allowed=allowed, allow_loopback=loopback), url) is opened


@pytest.mark.parametrize("location", ["https:elsewhere", "mailto:a@b", "http://xn--/"])
async def test_a_redirect_to_no_url_is_an_error_of_http(location):
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 302 Found\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n".encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, guarded_client(GuardPolicy(allow_loopback=True)) as client:
        with pytest.raises(httpx.RemoteProtocolError):
            await client.get(f"http://127.0.0.1:{port}/")


@pytest.mark.parametrize("host", ["127.1", "2130706433", "0x7f.1"])
async def test_a_number_that_stands_for_an_address_is_refused_or_checked_like_one(host):
    async with guarded_client(GuardPolicy()) as client:
        with pytest.raises((httpx.UnsupportedProtocol, AddressRefused)):
            await client.get(f"http://{host}/")


@pytest.mark.parametrize("url", ["http://10.0.0.1/", "http://[::1]/", "http://[::ffff:10.0.0.1]/", "http://localhost/"])
async def test_an_address_in_a_url_is_checked_without_a_lookup(url):
    async with guarded_client(GuardPolicy()) as client:
        with pytest.raises(AddressRefused):
            await client.get(url)


class TunnelProxy:
    """A proxy that records where it is asked to connect, and connects to the one server instead."""

    def __init__(self, status: int = 200) -> None:
        self.heads: list[str] = []
        self.status = status

    async def __aenter__(self) -> TunnelProxy:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self.server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self.server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
        writer.write(b"HTTP/1.1 %d Established\r\n\r\n" % self.status)
        if self.status == 200:
            self.heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok")
        await writer.drain()
        writer.close()


def resolve_to(*addresses: str):
    families = {True: socket.AF_INET6, False: socket.AF_INET}

    def resolve(host: str, port: int, **_: object):
        return [(families[":" in a], socket.SOCK_STREAM, 6, "", (a, port)) for a in addresses]

    return resolve


@pytest.mark.parametrize(
    ("address", "target"),
    [("93.184.216.34", "93.184.216.34:8080"), ("2606:4700::1111", "[2606:4700::1111]:8080")],
)
async def test_the_operators_proxy_is_given_the_address_that_was_checked(monkeypatch, address: str, target: str):
    monkeypatch.setattr(socket, "getaddrinfo", resolve_to(address))
    async with TunnelProxy() as proxy:
        monkeypatch.setenv("SYNTH_OUTBOUND_PROXY", f"http://user:secret@127.0.0.1:{proxy.port}")
        async with guarded_client(GuardSettings().guard) as client:
            assert (await client.get("http://app.example:8080/x")).text == "ok"
    connect, request = proxy.heads
    assert connect.startswith(f"CONNECT {target} HTTP/1.1\r\n")
    assert "Proxy-Authorization: Basic dXNlcjpzZWNyZXQ=" in connect
    assert "app.example" not in connect
    assert request.startswith("GET /x HTTP/1.1\r\nHost: app.example:8080\r\n")
    assert "secret" not in request + repr(GuardSettings().guard) + repr(GuardSettings())


@pytest.mark.parametrize("address", ["127.0.0.1", "10.0.0.1", "169.254.169.254", "::1", "::ffff:10.0.0.1"])
async def test_no_proxy_reaches_what_the_guard_refuses(monkeypatch, address: str):
    monkeypatch.setattr(socket, "getaddrinfo", resolve_to(address))
    async with TunnelProxy() as proxy:
        policy = GuardPolicy(proxy=f"http://127.0.0.1:{proxy.port}")
        async with guarded_client(policy) as client:
            with pytest.raises(AddressRefused):
                await client.get("http://app.example/")
    assert proxy.heads == []


async def test_what_the_operator_has_opened_is_reached_without_the_proxy():
    async with TunnelProxy(status=204) as app, TunnelProxy() as proxy:
        policy = GuardPolicy(allow_loopback=True, proxy=f"http://127.0.0.1:{proxy.port}")
        async with guarded_client(policy) as client:
            assert (await client.get(f"http://127.0.0.1:{app.port}/direct")).status_code == 204
    assert app.heads[0].startswith("GET /direct")
    assert proxy.heads == []


async def test_a_proxy_that_refuses_an_address_is_named_and_the_next_address_is_tried(monkeypatch):
    monkeypatch.setattr(socket, "getaddrinfo", resolve_to("2606:4700::1111", "93.184.216.34"))
    async with TunnelProxy(status=403) as proxy:
        policy = GuardPolicy(proxy=f"http://127.0.0.1:{proxy.port}")
        async with guarded_client(policy) as client:
            with pytest.raises(httpx.ProxyError, match="the cluster's outbound proxy answers 403"):
                await client.get("http://app.example/")
    assert [head.split()[1] for head in proxy.heads] == ["[2606:4700::1111]:80", "93.184.216.34:80"]


@pytest.mark.parametrize("proxy", ["p:3128", "socks5://p:1080", "http://", "http://u:s3cret@p:port", "s3cret"])
def test_a_proxy_that_is_none_is_an_error_at_the_start_without_its_password(monkeypatch, proxy: str):
    monkeypatch.setenv("SYNTH_OUTBOUND_PROXY", proxy)
    with pytest.raises(UserError, match="SYNTH_OUTBOUND_PROXY") as raised:
        GuardSettings()
    assert "s3cret" not in str(raised.value)
