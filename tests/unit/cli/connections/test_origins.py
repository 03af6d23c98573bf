"""The origin that a key belongs to, however an address spells it."""

from __future__ import annotations

import pytest

from synth.client.connections.origins import is_loopback, origin_of


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("https://app.example/a/b", "https://app.example"),
        ("HTTPS://App.EXAMPLE:443", "https://app.example"),
        ("http://app.example.:80/", "http://app.example"),
        ("http://app.example:443", "http://app.example:443"),
        ("https://app.example:8443/x", "https://app.example:8443"),
        ("http://127.1:8000", "http://127.0.0.1:8000"),
        ("http://[0:0:0:0:0:0:0:1]:8000", "http://[::1]:8000"),
        ("http://[::ffff:10.0.0.1]", "http://10.0.0.1"),
        ("http://0xa.0.0.1", "http://10.0.0.1"),
    ],
)
def test_one_origin_has_one_spelling(url: str, origin: str):
    assert origin_of(url) == origin


@pytest.mark.parametrize(
    "url",
    [
        *("http://user:secret@app.example", "http://127.0.0.1@app.example", "http://127.0.0.1\\@app.example"),
        *("http://127.0.0.1 .app.example", "http://app.example#@127.0.0.1", "ftp://app.example", "app.example"),
        *("http://[::1%25eth0]", "http://１２７.0.0.1", "http://app.example%2e127.0.0.1"),
    ],
)
def test_an_address_that_readers_could_understand_differently_has_no_origin(url: str):
    with pytest.raises(ValueError, match=r"has|is|does"):
        origin_of(url)
    assert not is_loopback(url)


@pytest.mark.parametrize(
    ("host", "here"),
    [
        *(("localhost", True), ("LOCALHOST.", True), ("127.0.0.1", True), ("127.9.8.7", True), ("127.1", True)),
        *(("0x7f.1", True), ("2130706433", True), ("[::1]", True), ("[::ffff:127.0.0.1]", True)),
        *(("localhost.evil.com", False), ("127.0.0.1.evil.com", False), ("evil-localhost", False), ("0.0.0.0", False)),
        *(("128.0.0.1", False), ("[::]", False), ("app.localhost", False), ("127.0.0.1.", True), ("10.0.0.1", False)),
    ],
)
def test_loopback_is_told_from_what_only_looks_like_it(host: str, here: bool):
    assert is_loopback(f"http://{host}:8000/x") is here
