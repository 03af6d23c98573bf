"""Follow your organisation's events on the bus, and continue after the last stored one.

    synthctl keys create --bus                       # prints the key, once
    SYNTH_BUS_KEY=synth_bus_… python -m examples.subscriber --bus nats://127.0.0.1:4222 --place place.txt

With `--ca ca.pem`, or an address of `tls://`, the bus is dialled over TLS or not at all; `--cert` and `--cert-key` are
for a bus that requires a certificate of its clients.

Each event is a line of JSON. `--place` keeps the `seq` of the last one. To store each event exactly once elsewhere,
store its `seq` with it in one transaction. The bus remembers no subscriber.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import ssl
import sys
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from nats.aio.client import Client
from nats.errors import Error as NatsError

_LONGEST_WAIT_S = 10.0


@dataclass(frozen=True)
class Event:
    """seq: its place in the log, which grows. subject: `<entity>.<fact>.<org>.<key>`."""

    seq: int
    subject: str
    data: dict[str, Any]


class _Refused(Exception):
    """The gateway opened no feed, or the bus lacks the required TLS; a retry changes nothing."""


class _Client(Client):
    """Sends the key over TLS if that is required, or not at all.

    By default nats-py encrypts if the server requires it, and otherwise continues in plain text.
    """

    def _connect_command(self) -> bytes:
        if "tls" in self.options and not self._server_info.get("tls_required"):
            raise _Refused("the bus does not speak TLS, and --ca or tls:// requires it")
        return super()._connect_command()


def tls_of(ca: Path | None, cert: Path | None = None, cert_key: Path | None = None) -> ssl.SSLContext:
    """Return a context with the trusted CA (None: the machine's own), and with the client's certificate and its key."""
    tls = ssl.create_default_context(cafile=ca)
    if cert is not None:
        tls.load_cert_chain(cert, cert_key)
    return tls


async def follow(
    bus: str, gateway: str, key: str, *, after: int | None, tls: ssl.SSLContext | None = None
) -> AsyncGenerator[Event, None]:
    """Yield every event after `after` (None: from now on), in order and each once, across lost connections; never ends.

    A bus key's session is cut after a few minutes, so lost connections are usual. Raises `_Refused` if the gateway
    refuses the key or the place, and if `tls` is given and the bus has none, or has an untrusted certificate.
    """
    login: dict[str, Any] = {"user": "subscriber", "password": key} | ({"tls": tls} if tls else {})
    waits = 0.1
    while True:
        try:
            nc = _Client()
            await nc.connect(bus, allow_reconnect=False, error_cb=_ignore, **login)
            try:
                async for event in _read_feed(nc, gateway, key, after):
                    if isinstance(event, Event):
                        yield event
                        after = event.seq
                    else:
                        after = event
                    waits = 0.1
            finally:
                await nc.close()
        except ssl.SSLCertVerificationError as error:
            raise _Refused(f"the certificate of the bus is refused: {error.verify_message}; see --ca") from error
        except (NatsError, httpx.HTTPError, OSError, TimeoutError) as error:
            sys.stderr.write(f"again in {waits:.1f} s: {error!r}\n")
        await asyncio.sleep(waits)
        waits = min(2 * waits, _LONGEST_WAIT_S)


async def _read_feed(nc: Client, gateway: str, key: str, after: int | None) -> AsyncGenerator[Event | int, None]:
    """Yield the sequence at which the feed begins, then its events, until it skips one, is silent or is cut."""
    async with httpx.AsyncClient(headers={"Authorization": f"Bearer {key}"}, timeout=30) as http:
        reply = await http.post(f"{gateway}/api/feeds", json={} if after is None else {"after": after})
    if reply.status_code in (401, 403, 409):
        raise _Refused(reply.json()["detail"])
    feed = reply.raise_for_status().json()
    listening = await nc.subscribe(feed["subject"])
    yield feed["after"]
    came = 0
    while True:
        msg = await listening.next_msg(timeout=3 * feed["heartbeat_s"])
        if (msg.headers or {}).get("Status") == "100":
            if int((msg.headers or {}).get("Nats-Last-Consumer", came)) != came:
                return
            continue
        came += 1
        if msg.metadata.sequence.consumer != came:
            return
        yield Event(seq=msg.metadata.sequence.stream, subject=msg.subject, data=json.loads(msg.data))


async def _ignore(error: Exception) -> None:
    """Ignore an error of the connection, which the waiting code raises itself."""


async def _print(arguments: argparse.Namespace) -> None:
    place: Path = arguments.place
    after = int(place.read_text()) if place.exists() else 0 if arguments.all else None
    bus, key, tls = arguments.bus, os.environ["SYNTH_BUS_KEY"], None
    if arguments.ca or arguments.cert or bus.startswith("tls://"):
        tls = tls_of(arguments.ca, arguments.cert, arguments.cert_key)
    async for event in follow(bus, arguments.gateway, key, after=after, tls=tls):
        sys.stdout.write(json.dumps({"seq": event.seq, "subject": event.subject, "data": event.data}) + "\n")
        sys.stdout.flush()
        whole = place.with_suffix(".part")
        whole.write_text(str(event.seq))
        whole.replace(place)


def main() -> None:
    """Parse the command line and follow the events."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bus", default="nats://127.0.0.1:4222", help="nats-server's address")
    parser.add_argument("--ca", type=Path, help="the CA that signed the bus's certificate (PEM), if it has one")
    parser.add_argument("--cert", type=Path, help="the subscriber's own certificate (PEM), if the bus requires one")
    parser.add_argument("--cert-key", type=Path, help="the private key of it; without, it is in the same file")
    parser.add_argument("--gateway", default="http://127.0.0.1:8000", help="the gateway's address")
    parser.add_argument("--place", type=Path, default=Path("place.txt"), help="the file that keeps the place")
    parser.add_argument("--all", action="store_true", help="without a place, begin with the first event, not now")
    if "SYNTH_BUS_KEY" not in os.environ:
        parser.error("SYNTH_BUS_KEY is not set: `synthctl keys create --bus` makes one")
    try:
        asyncio.run(_print(parser.parse_args()))
    except _Refused as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
