"""Addresses of images that lead nowhere, to something that is no image, or to where nobody may reach."""

from __future__ import annotations

import base64
import random
import struct
import zlib

from tests.soak.hostile.values import text

_PNG = b"\x89PNG\r\n\x1a\n"


def image_address(rng: random.Random, *, allowed: str, forbidden: int) -> str:
    """An address as a row has it.

    allowed: the base of a server that may be reached, below which every path answers as it likes. forbidden: the port
    of a listener on loopback that nobody may reach.
    """
    return rng.choice((_inside, _inside, _at_the_server, _at_the_server, _data, _no_address))(rng, allowed, forbidden)


def forbidden_addresses(port: int) -> list[str]:
    """Ways to write an address of this machine."""
    hosts = [
        *("127.0.0.1", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "127.0.0.3", "127.255.255.254"),
        *("0.0.0.0", "0", "①②⑦.⓪.⓪.①", "127。0。0。1", "%31%32%37.0.0.1"),
        *("[::1]", "[::]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]"),
        *("[::1%25lo]", "localhost", "LOCALHOST.", "ip6-localhost", "localhost.localdomain"),
    ]
    return [
        *(f"http://{host}:{port}/a.png" for host in hosts),
        f"http://127.0.0.2@127.0.0.1:{port}/",
        f"http://127.0.0.2:80@localhost:{port}/",
        f"http://127.0.0.1:{port}#@127.0.0.2/",
        f"http://127.0.0.1:{port}\\@127.0.0.2/",
        f"http:\\\\127.0.0.1:{port}/",
        f"http:///127.0.0.1:{port}/",
        f"https://127.0.0.1:{port}/",
        f"HTTP://127.0.0.1:{port}/",
        f" http://127.0.0.1:{port}/ ",
        "http://169.254.169.254/latest/meta-data/",
        "http://[fd00:ec2::254]/",
        "http://10.0.0.1/",
        "http://100.64.0.1/",
    ]


def _inside(rng: random.Random, allowed: str, forbidden: int) -> str:
    return rng.choice(forbidden_addresses(forbidden))


def _at_the_server(rng: random.Random, allowed: str, forbidden: int) -> str:
    return f"{allowed}/image/{rng.randrange(1 << 30)}"


def _data(rng: random.Random, allowed: str, forbidden: int) -> str:
    wide, high = rng.choice(((2**31 - 1, 2**31 - 1), (0, 0), (50_000, 50_000), (64, 48)))
    header = struct.pack(">II", wide, high) + b"\x08\x02\0\0\0"
    bomb = zlib.compress(b"\0" * 1_000_000)
    png = _PNG + _chunk(b"IHDR", header) + _chunk(b"IDAT", bomb) + _chunk(b"zTXt", b"a\0\0" + bomb)
    others = (b"GIF89a" + rng.randbytes(20), b"RIFF\xff\xff\xff\xffWEBP", b"")
    body = rng.choice((png, png[: rng.randrange(len(png))], *others))
    encoded = base64.b64encode(body).decode()
    kind = rng.choice(("png", "jpeg", "webp", "gif", "svg+xml", "png;charset=" + "a" * 2000))
    address = f"data:image/{kind};base64,{encoded}"
    return rng.choice((address, f"{address}=*=", f"data:,{encoded}"))


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def _no_address(rng: random.Random, allowed: str, forbidden: int) -> str:
    return rng.choice(
        (
            "file:///etc/passwd",
            "gopher://127.0.0.1/",
            f"ftp://127.0.0.1:{forbidden}/",
            "http://",
            "http://[::1",
            "http://a:99999999/",
            "http://a:-1/",
            "http://" + "a" * 300 + ".invalid/",
            "http://" + ".".join("a" * 200) + "/",
            "http://xn--\ud800/",
            "//127.0.0.1/",
            "blob://orgs/org_x/images/" + "0" * 64,
            f"{allowed}/image/\r\nHost: 127.0.0.1\r\n\r\n",
            "javascript:alert(1)",
            text(rng),
        )
    )
