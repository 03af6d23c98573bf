"""Which proxy the environment names for an address, and what is told about one that cannot be used."""

from __future__ import annotations

import httpx
import pytest

from synth.bus.server.embedded import free_port
from synth.cli.submission import app_max_turns
from synth.client.connections.clients import open_http
from synth.client.connections.config import Config, ConfigValue
from synth.client.connections.proxies import UnusableProxy, proxy_for
from synth.console.errors import UsageProblem
from tests.unit.cli.backend import Answer, backend_that

A, B = "http://a:3128", "http://b:3128"


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.mark.parametrize(
    ("environment", "url", "proxy"),
    [
        ({"HTTP_PROXY": A}, "http://app.example", A),
        ({"HTTP_PROXY": A}, "https://app.example", None),
        ({"HTTPS_PROXY": A, "ALL_PROXY": B}, "https://app.example", A),
        ({"HTTPS_PROXY": A, "ALL_PROXY": B}, "http://app.example", B),
        ({"HTTP_PROXY": A, "http_proxy": B}, "http://app.example", B),
        ({"HTTP_PROXY": A, "http_proxy": ""}, "http://app.example", None),
        ({"HTTP_PROXY": "a:3128"}, "http://app.example", A),
        ({"HTTPS_PROXY": "https://user:secret@a:3128"}, "https://app.example", "https://a:3128"),
        # Loopback, in each of its spellings.
        ({"HTTP_PROXY": A}, "http://127.0.0.1:8000", None),
        ({"ALL_PROXY": "socks5h://127.0.0.1:9"}, "http://localhost:8000", None),
        ({"ALL_PROXY": "nonsense"}, "http://[::1]:8000", None),
        ({"HTTP_PROXY": A}, "http://127.1:8000", None),
        ({"HTTP_PROXY": A}, "http://localhost.evil.com", A),
        # NO_PROXY.
        ({"HTTP_PROXY": A, "NO_PROXY": "*"}, "http://app.example", None),
        ({"HTTP_PROXY": A, "no_proxy": "other, APP.example"}, "http://app.example.", None),
        ({"HTTP_PROXY": A, "NO_PROXY": ".example"}, "http://app.example", None),
        ({"HTTP_PROXY": A, "NO_PROXY": "*.example"}, "http://app.example", None),
        ({"HTTP_PROXY": A, "NO_PROXY": "example"}, "http://notexample", A),
        ({"HTTP_PROXY": A, "NO_PROXY": "app.example:8001"}, "http://app.example", A),
        ({"HTTP_PROXY": A, "NO_PROXY": "app.example:80"}, "http://app.example", None),
        ({"HTTP_PROXY": A, "NO_PROXY": "10.0.0.0/8"}, "http://10.1.2.3:8001", None),
        ({"HTTP_PROXY": A, "NO_PROXY": "10.0.0.0/8"}, "http://11.1.2.3:8001", A),
        ({"HTTP_PROXY": A, "NO_PROXY": "[fd00::1]:81,fd00::/64"}, "http://[fd00::1]", None),
        ({"HTTP_PROXY": A, "NO_PROXY": "[fd00::1]:81"}, "http://[fd00::1]", A),
        ({"HTTP_PROXY": A, "NO_PROXY": ""}, "http://app.example", A),
    ],
)
def test_the_environment_names_the_proxy(
    environment: dict[str, str], url: str, proxy: str | None, monkeypatch: pytest.MonkeyPatch
):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    result = proxy_for(url)
    assert (result.url if result else None) == proxy


@pytest.mark.parametrize(
    ("proxy", "what"),
    [
        *(
            ("ftp://p:1", "not the address of a proxy"),
            ("http://", "not the address"),
            ("http://p:port", "address"),
        ),
        *(("http://p:0", "not the address"), ("http://[::1", "not the address"), ("socks4://p:1", "not the address")),
        ("http://user:pa/ss@p:port", "not the address of a proxy"),
        ("socks5h://p:1080", "the package socksio is missing"),
    ],
)
def test_a_proxy_that_cannot_be_used_is_one_error(proxy: str, what: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HTTPS_PROXY", proxy)
    with pytest.raises(UnusableProxy, match=what) as raised:
        open_http(ConfigValue("https://app.example", "flag"), timeout=1)
    text = str(raised.value)
    assert "HTTPS_PROXY" in text
    assert "add app.example to NO_PROXY" in text
    assert "pa/ss" not in text


def test_a_proxy_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch):
    proxy = f"http://127.0.0.1:{free_port()}"
    monkeypatch.setenv("HTTP_PROXY", proxy)
    with open_http(ConfigValue("http://app.example", "flag"), timeout=5) as http:
        with pytest.raises(httpx.TransportError) as raised:
            http.get("http://app.example/health")
        through = f"through the proxy {proxy} (HTTP_PROXY): "
        assert http.route.reason(raised.value) == f"{through}nothing listens at this address"
        assert "NO_PROXY" in http.route.fix("", raised.value)


@pytest.mark.parametrize(
    ("variable", "proxy"), [("HTTP_PROXY", "http://127.0.0.1:{}"), ("ALL_PROXY", "socks5h://127.0.0.1:{}")]
)
def test_an_app_on_this_machine_is_asked_for_its_turns_beside_a_proxy(
    variable: str, proxy: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(variable, proxy.format(free_port()))
    key = ConfigValue("env_1", ".env", "ENVIRONMENT_API_KEY")
    with backend_that(lambda _: Answer(body={"limits": {"max_turns": 3}})) as (app, _):
        settings = Config(ConfigValue(app.url, "flag"), None, key, None)
        assert app_max_turns(ConfigValue(app.url.removesuffix("/api"), "--task-url"), settings) == 3
        assert [request.headers["X-API-Key"] for request in app.requests] == ["env_1"]


def test_a_client_sends_nothing_to_another_origin():
    with open_http(ConfigValue("http://127.0.0.1:8000/api", "flag"), timeout=1) as http:
        for url in ("http://127.0.0.1:8001/", "https://127.0.0.1:8000/", "http://evil.example:8000/"):
            with pytest.raises(ValueError, match=r"a client of http://127.0.0.1:8000 is asked for"):
                http.get(url)


@pytest.mark.parametrize("key", ["two\nlines", "kéy", "a\x00b", "\u2028"])
def test_a_key_that_no_header_holds_is_refused_with_its_place(key: str):
    with pytest.raises(UsageProblem, match=r"SYNTH_API_KEY \(\.env\) has characters"):
        open_http(
            ConfigValue("http://127.0.0.1:8000", "default"), key=ConfigValue(key, ".env", "SYNTH_API_KEY"), timeout=1
        )
