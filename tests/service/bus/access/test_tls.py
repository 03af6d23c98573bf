"""TLS on a real nats-server: who asks for it has it or no connection, and a start that cannot succeed says why once."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from contextlib import aclosing
from dataclasses import replace

import pytest

from examples.subscriber import follow, tls_of
from synth.bus.connection import connect
from synth.bus.delivery import make_broker
from synth.bus.server.deployed import ServerTls
from synth.bus.server.provision import provision
from synth.bus.server.topology import topology
from synth.errors import UserError
from tests.service.bus.access.certificates import Authority
from tests.service.process import environment, running


async def refused(server, words: str, **settings) -> None:
    """Dialling ends by itself, with this one problem."""
    with pytest.raises(UserError, match=words) as error:
        await asyncio.wait_for(server.connect("bus", **settings), 20)
    assert len(error.value.problems) == 1


def of_validator(server) -> list[dict]:
    """Of the connections, the service's own and its broker's."""
    return [connection for connection in server.connections() if connection["name"].startswith("validator/")]


async def first_event(url: str, authority: Authority) -> None:
    """What `examples/subscriber.py --ca` does, whose key is no key."""
    tls = tls_of(authority.cert)
    async with aclosing(follow(url, "http://127.0.0.1:9", "no key", after=0, tls=tls)) as events:
        await asyncio.wait_for(anext(events), 10)


async def test_a_service_speaks_tls_to_a_server_of_its_ca_and_again_after_a_restart(server, server_tls, authority):
    server.configure(tls=server_tls)
    server.start()
    bus = await server.connect("bus", nats_ca=authority.cert)
    await provision(bus.js, topology())
    (connection,) = server.connections()
    assert (connection["authorized_user"], connection["tls_version"]) == ("bus", "1.3")
    server.stop()
    server.start()
    await server.until(lambda: bus.nc.is_connected and server.connections())
    assert server.connections()[0]["tls_version"] == "1.3"
    assert (await bus.js.stream_info("EVENTS")).config.name == "EVENTS"


async def test_every_connection_of_a_service_is_encrypted_its_broker_s_too(server, server_tls, authority, tmp_path):
    server.configure(tls=server_tls)
    server.start()
    bus = await server.connect("bus", nats_ca=authority.cert)
    await provision(bus.js, topology())
    with running("validator", server.settings("validator"), tmp_path / "log", SYNTH_NATS_CA=str(authority.cert)):
        await server.until(lambda: len(of_validator(server)) == 2)
        assert [connection["tls_version"] for connection in of_validator(server)] == ["1.3", "1.3"]


async def test_a_server_of_another_ca_is_refused(server, server_tls, authority, tmp_path):
    server.configure(tls=server_tls)
    server.start()
    other = Authority.at(tmp_path, "other")
    await refused(server, rf"SYNTH_NATS_CA: .*refused: .*issuer.*signed by {other.cert}", nats_ca=other.cert)
    with pytest.raises(Exception, match="the certificate of the bus is refused"):
        await first_event(server.url, other)
    # A server that wants TLS is spoken to in no other way, also where no setting asks for it.
    await refused(server, "SYNTH_NATS_CA: .*signed by a CA that this machine trusts; set it to the file")
    await refused(server, "SYNTH_NATS_CA: .*a CA that this machine", nats_url=server.url.replace("nats:", "tls:"))


async def test_a_certificate_of_another_host_is_refused(server, authority):
    made = authority.sign("server", hosts="DNS:nats.example.com")
    server.configure(tls=ServerTls(str(made.cert), str(made.key)))
    server.start()
    await refused(server, "SYNTH_NATS_URL: .*mismatch.*a host that the certificate names", nats_ca=authority.cert)


async def test_mutual_tls_takes_the_clients_of_its_ca_and_no_others(server, server_tls, authority, tmp_path):
    server.configure(tls=replace(server_tls, client_ca=str(authority.cert)))
    server.start()
    own = authority.sign("client")
    bus = await server.connect("bus", nats_ca=authority.cert, nats_cert=own.cert, nats_key=own.key)
    assert bus.nc.is_connected
    await refused(server, "SYNTH_NATS_CERT: the bus refuses a client without a certificate", nats_ca=authority.cert)
    foreign = Authority.at(tmp_path, "other").sign("foreign")
    files = {"nats_ca": authority.cert, "nats_cert": foreign.cert, "nats_key": foreign.key}
    await refused(server, f"SYNTH_NATS_CERT: the bus refuses {foreign.cert}", **files)


async def test_a_server_in_plain_text_is_sent_nothing_where_tls_is_asked_for(server, authority):
    said = bytearray()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        info = {"server_id": "x", "version": "2.15.1", "auth_required": True, "max_payload": 1 << 20, "headers": True}
        writer.write(b"INFO " + json.dumps(info).encode() + b"\r\n")
        while chunk := await reader.read(4096):
            said.extend(chunk)
        writer.close()

    plain = await asyncio.start_server(listen, "127.0.0.1", 0)
    port = plain.sockets[0].getsockname()[1]
    words = "SYNTH_NATS_URL: the bus at .* does not speak TLS"
    await refused(server, words, nats_url=f"nats://127.0.0.1:{port}", nats_ca=authority.cert)
    await refused(server, words, nats_url=f"tls://127.0.0.1:{port}")
    # The broker's client is another one, and goes on trying.
    settings = server.settings("validator", nats_url=f"nats://127.0.0.1:{port}", nats_ca=authority.cert)
    broker = make_broker(settings, "validator")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(broker.start(), 1)
    with pytest.raises(Exception, match="the bus does not speak TLS"):
        await first_event(f"nats://127.0.0.1:{port}", authority)
    plain.close()
    await plain.wait_closed()
    assert bytes(said) == b""


async def test_a_server_that_comes_back_in_plain_text_is_not_taken_for_the_bus(server, server_tls, authority):
    server.configure(tls=server_tls)
    server.start()
    bus = await server.connect("bus", nats_ca=authority.cert)
    server.stop()
    server.configure()
    server.start()
    await asyncio.sleep(2)
    # One that is being dialled is in the list; it has shown no credential.
    assert not [connection for connection in server.connections() if connection.get("authorized_user")]
    assert not bus.nc.is_connected
    server.stop()
    server.configure(tls=server_tls)
    server.start()
    await server.until(lambda: bus.nc.is_connected)


async def test_what_waits_for_the_bus_is_not_flushed_into_plain_text_at_the_end(server, server_tls, authority):
    server.configure(tls=server_tls)
    server.start()
    bus = await server.connect("bus", nats_ca=authority.cert)
    server.stop()
    said, dialled, left = bytearray(), asyncio.Event(), asyncio.Event()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        dialled.set()
        while chunk := await reader.read(4096):
            said.extend(chunk)
        writer.close()
        left.set()

    silent = await asyncio.start_server(listen, "127.0.0.1", int(server.url.rpartition(":")[2]))
    await asyncio.wait_for(dialled.wait(), 20)
    await bus.nc.publish("job.created.org_x.job_x", b"what somebody wrote")
    await bus.close()
    await asyncio.wait_for(left.wait(), 10)
    silent.close()
    await silent.wait_closed()
    assert bytes(said) == b""


async def test_the_server_s_certificate_is_renewed_without_a_restart(server, server_tls, authority, tmp_path):
    server.configure(tls=server_tls)
    server.start()
    bus = await server.connect("bus", nats_ca=authority.cert)
    other = Authority.at(tmp_path, "other")
    renewed = other.sign("renewed")
    server.configure(tls=ServerTls(str(renewed.cert), str(renewed.key)))
    server.reload()
    for _ in range(100):
        # Until it has read them, the new CA is none of its.
        if await is_taken(server, other):
            break
        await asyncio.sleep(0.05)
    assert await is_taken(server, other)
    assert bus.nc.is_connected


async def is_taken(server, authority: Authority) -> bool:
    try:
        return (await server.connect("bus", nats_ca=authority.cert)).nc.is_connected
    except UserError:
        return False


async def test_one_server_that_is_refused_does_not_hold_up_a_start_where_another_is_taken(
    server, server_tls, authority
):
    server.configure(tls=server_tls)
    server.start()
    port = server.url.rpartition(":")[2]
    both = f"tls://localhost:{port},tls://127.0.0.1:{port}"
    for _ in range(4):
        # The name `localhost` is not in the certificate; which one is dialled first is chance.
        bus = await asyncio.wait_for(server.connect("bus", nats_url=both, nats_ca=authority.cert), 20)
        assert bus.nc.is_connected


def cases(authority: Authority) -> dict[str, tuple[dict[str, object], str]]:
    own, other = authority.sign("own"), authority.sign("else")
    sealed = authority.sign("sealed", passphrase="a passphrase")
    gone = authority.home / "gone.pem"
    return {
        "no file": ({"nats_ca": gone}, f"SYNTH_NATS_CA: {gone}: No such file"),
        "a folder": ({"nats_ca": authority.home}, f"SYNTH_NATS_CA: {authority.home}: Is a directory"),
        "no certificate": ({"nats_ca": own.key}, f"SYNTH_NATS_CA: {own.key} holds no certificate"),
        "no key": ({"nats_cert": own.cert}, "SYNTH_NATS_KEY: not set, though"),
        "no cert": ({"nats_key": own.key}, "SYNTH_NATS_CERT: not set, though"),
        "another key": ({"nats_cert": own.cert, "nats_key": other.key}, f"SYNTH_NATS_KEY: {other.key} is not the key"),
        "a cert as key": ({"nats_cert": own.cert, "nats_key": own.cert}, f"SYNTH_NATS_KEY: {own.cert} is no private"),
        "a sealed key": ({"nats_cert": sealed.cert, "nats_key": sealed.key}, f"KEY: {sealed.key} is no private key"),
        "a websocket": ({"nats_url": "wss://127.0.0.1:9", "nats_ca": own.cert}, "SYNTH_NATS_URL: wss://127.0.0.1:9 is"),
    }


async def test_files_that_are_not_what_their_settings_say_are_named_before_anything_is_dialled(server, authority):
    for name, (settings, words) in cases(authority).items():
        with pytest.raises(UserError, match=re.escape(words)) as error:
            await asyncio.wait_for(connect(server.settings("bus", **settings), "bus"), 5)
        (problem,) = error.value.problems
        assert problem.expected, name


async def test_every_wrong_file_is_named_at_once(server, tmp_path):
    missing = {name: tmp_path / name for name in ("nats_ca", "nats_cert", "nats_key")}
    with pytest.raises(UserError) as error:
        await connect(server.settings("bus", **missing), "bus")
    assert [p.where for p in error.value.problems] == ["SYNTH_NATS_CA", "SYNTH_NATS_CERT", "SYNTH_NATS_KEY"]


@pytest.mark.parametrize(("command", "said"), [(["files"], "service ends"), (["bus", "init"], "error: SYNTH_NATS_CA")])
def test_a_process_that_does_not_trust_the_bus_ends_and_says_so_once(server, server_tls, tmp_path, command, said):
    server.configure(tls=server_tls)
    server.start()
    ca = Authority.at(tmp_path, "other").cert
    env = environment(server.settings(command[0]), SYNTH_NATS_CA=str(ca))
    done = subprocess.run(
        [sys.executable, "-m", "synth.synthd", *command],
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    server.stop()
    lines = [line for line in done.stderr.splitlines() if "SYNTH_NATS_CA" in line]
    assert (done.returncode, len(lines)) == (1, 1), done.stderr
    assert said in lines[0]
    assert "Traceback" not in done.stderr
