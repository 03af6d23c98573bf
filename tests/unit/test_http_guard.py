"""A user's URL cannot reach inside."""

from __future__ import annotations

import asyncio
import ipaddress
import socket

import pytest

from synth.http_guard import AddressRefused, GuardPolicy, GuardSettings, guarded_client, names_allowed_address


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
        "224.0.0.1",
        "255.255.255.255",
        "192.88.99.1",
        "::1",
        "::",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "::127.0.0.1",
        "64:ff9b::7f00:1",
        "2002:7f00:1::",
        "2001:0:7f00:1::",
        "fe80::1",
        "fe80::1%2",
        "fc00::1",
        "ff0e::1",
    ],
)
def test_an_address_that_is_not_public_is_refused(address):
    assert not GuardPolicy().admits(address)


@pytest.mark.parametrize("address", ["8.8.8.8", "::ffff:8.8.8.8", "2606:4700::1111"])
def test_a_public_address_is_admitted(address):
    assert GuardPolicy().admits(address)


def test_only_what_the_settings_allow_is_admitted_beside(monkeypatch):
    monkeypatch.setenv("SYNTH_ALLOWED_CIDRS", "10.1.0.0/16, fd00::/8")
    monkeypatch.setenv("SYNTH_ALLOW_LOOPBACK", "1")
    guard = GuardSettings().guard
    assert guard == GuardPolicy((ipaddress.ip_network("10.1.0.0/16"), ipaddress.ip_network("fd00::/8")), True)
    assert all(guard.admits(a) for a in ("10.1.2.3", "::ffff:10.1.2.3", "fd12::1", "127.0.0.1", "::1"))
    assert not any(guard.admits(a) for a in ("10.2.0.1", "fc00::1", "169.254.169.254"))


def test_a_network_that_is_none_is_an_error_at_the_start(monkeypatch):
    monkeypatch.setenv("SYNTH_ALLOWED_CIDRS", "10.1.0.0/160")
    with pytest.raises(ValueError, match="allowed_cidrs"):
        GuardSettings()


async def test_a_name_is_resolved_once_and_the_connection_goes_to_what_was_looked_at(monkeypatch):
    looked: list[str] = []

    async def resolve(host: str, port: int, **_: object):
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
    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
    async with guarded_client(GuardPolicy(allow_loopback=True)) as client:
        assert (await client.get(f"http://rebinding.example:{port}/")).text == "ok"
        assert looked == ["rebinding.example"]
        with pytest.raises(AddressRefused, match=r"10\.0\.0\.1"):
            await client.get(f"http://rebinding.example:{port}/")
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
