"""Where the credential of a rollout is found, as clients send it."""

from __future__ import annotations

import pytest

from synth.errors import InvalidKey
from synth.keys import Cid, mint_cid
from synth.rollout_credential import find_credential
from tests.keyrings import credentials

CID = mint_cid(
    Cid(rollout_id="job_1_t0_0", nonce=1, replica="r-1", version=None, calls=9, ends=2**40, expires=2**40),
    credentials(),
)
CHAT = "/v1/chat/completions"


def found(query: str = "", *, path: str = CHAT, key: str = "") -> str | None:
    return find_credential(path=path, query=query, authorization=f"Bearer {key}" if key else "")


@pytest.mark.parametrize("name", ["cid", "trace", "trace_correlation_id"])
@pytest.mark.parametrize(
    "joined",
    ["", "chat/completions", "/chat/completions", "/v1/chat/completions", "v1/chat/completions", "/", "?a=b", "%2Fv1"],
)
def test_what_a_client_joined_to_the_credential_is_cut_off(name: str, joined: str) -> None:
    assert found(f"{name}={CID}{joined}") == CID
    assert found(f"a=b&{name}={CID}{joined}&c=d", path=f"{CHAT}/", key="sk_any") == CID


@pytest.mark.parametrize("slash", ["", "/"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/chat/completions"])
@pytest.mark.parametrize("prefix", ["", "/behind/a/proxy"])
def test_the_credential_may_stand_in_the_path(prefix: str, path: str, slash: str) -> None:
    assert found(path=f"{prefix}/rollouts/{CID}{path}{slash}", key="sk_any") == CID
    assert found(path="/internal/rollouts/close") is None
    assert found(path=f"/rollouts/{CID}") is None


def test_the_credential_may_be_the_api_key() -> None:
    assert found(key=CID) == CID
    assert find_credential(path=CHAT, query="", authorization=f"bearer  {CID} ") == CID
    assert find_credential(path=CHAT, query="", authorization=f"Basic {CID}") is None
    assert found(key="synth_live_x") is None
    assert found() is None


@pytest.mark.parametrize("key", ["any", "synth_live_x", "trace_mine", CID])
def test_beside_a_credential_in_the_address_any_key_will_do(key: str) -> None:
    assert found(f"cid={CID}", key=key) == CID
    assert found(path=f"/rollouts/{CID}{CHAT}", key=key) == CID


def test_the_credentials_of_two_rollouts_are_refused_wherever_they_stand() -> None:
    other = CID[:-1] + ("0" if CID[-1] != "0" else "1")
    for query, path, key in (
        (f"cid={CID}", CHAT, other),
        ("", f"/rollouts/{CID}{CHAT}", other),
        (f"cid={CID}", f"/rollouts/{other}{CHAT}", ""),
        (f"cid={CID}&trace_correlation_id={other}", CHAT, ""),
    ):
        with pytest.raises(InvalidKey, match="credentials of two rollouts") as refused:
            found(query, path=path, key=key)
        assert CID not in str(refused.value)
        assert other not in str(refused.value)


@pytest.mark.parametrize("name", ["trace", "trace_correlation_id"])
@pytest.mark.parametrize("value", ["trace_mine", "17", "", CID[:-1], f"{CID}_0", f"{CID}0"])
def test_what_an_app_calls_a_trace_is_no_credential(name: str, value: str) -> None:
    assert found(f"{name}={value}") is None
    assert found(f"{name}={value}", key=CID) == CID


@pytest.mark.parametrize("given", ["trace_x", "x", "", f"{CID}_0", f"{CID}0", CID[:-1]])
def test_a_mangled_one_is_given_back_to_be_refused(given: str) -> None:
    assert found(f"cid={given}", key="synth_live_x") == given
    assert found(f"cid={given}/v1/chat/completions") == given
