"""An address to which paths are added holds nothing that two readers of URLs could read differently."""

from __future__ import annotations

from urllib.parse import urlsplit

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synth.base_url import base_url_fault, under
from synth.outbound.http_guard import origin_of, read_url

GOOD = (
    "http://127.0.0.1:8001",
    "http://localhost:8001/",
    "https://org--app.modal.run",
    "https://api.example.com:8443/v1",
    "http://[::1]:8001/apps/math",
    "http://my_app:8000/a%20b/~c",
    "HTTPS://Example.COM",
)


@pytest.mark.parametrize("url", GOOD)
def test_a_good_one_is_read_alike_by_all_and_a_path_goes_below_it(url: str):
    assert base_url_fault(url) is None
    called, read = httpx.URL(under(url, "/health")), urlsplit(url)
    assert (called.host, called.port) == (read.hostname, read.port)
    assert called.path == httpx.URL(url).path.rstrip("/") + "/health"
    assert not called.query


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://app.example?x=", "query"),
        ("http://app.example/?", "query"),
        ("http://app.example/a#", "fragment"),
        ("http://app.example#@inside/", "fragment"),
        ("http://user@app.example", "user's name"),
        ("http://good.example:80@169.254.169.254/", "user's name"),
        ("http://@app.example", "user's name"),
        ("http://app.example\\@inside/", "characters"),
        ("http://app.example/a\\b", "characters"),
        ("http://app.exam\nple/", "characters"),
        ("http://app.example/ a", "characters"),
        ("http://app.example/\x1b[2J", "characters"),
        ("http://ａpp.example", "characters"),
        ("http://app.example/\u202e", "characters"),
        ("http://app.example/..", "path with . or .."),
        ("http://app.example/a/%2e%2E/b", "path with . or .."),
        ('http://app.example/"', "characters"),
        ("http://app.example%2einside", "host"),
        ("http://[fe80::1%25eth0]", "host"),
        ("http://app..example", "host"),
        ("http://xn--", "host"),
        ("http://xn--/a", "host"),
        ("https://xn--zzzzzz.example", "host"),
        ("http://0177.0.0.1", "host"),
        ("http://1.2.3.256", "host"),
        ("http://app.example:8o", "no URL"),
        ("http://app.example:0", "names no host, or no port"),
        ("http://app.example:65536", "no URL"),
        ("http://[::bad", "no URL"),
        ("ftp://app.example", "http://"),
        ("http://", "names no host"),
        ("app.example", "http://"),
        ("", "http://"),
    ],
)
def test_what_could_lead_elsewhere_is_refused_with_what_is_wrong(url: str, said: str):
    assert said in (base_url_fault(url) or "")


_PARTS = st.sampled_from(
    ["http", "https", ":", "/", "//", "xn--", "a", ".", "[", "]", "::1", "%", "@", ":99999", ":-1", "\u2100", "\ud800"]
)


@settings(max_examples=500, deadline=None)
@given(st.lists(_PARTS | st.text(max_size=3), max_size=8).map("".join))
def test_no_text_breaks_a_reader_and_an_address_without_a_fault_has_an_origin(text: str):
    for url in (text, f"http://{text}"):
        origin = origin_of(url)
        assert origin is None or read_url(origin) is not None
        if base_url_fault(url) is None:
            assert origin is not None
