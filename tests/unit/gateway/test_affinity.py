"""Which replica a conversation goes to."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from synth.api.limits import MAX_MODEL_ID
from synth.bus.kv.replicas import Replica
from synth.gateway.chat_proxy.affinity import NoModel, rank_replicas, read_route

SESSIONS = [f"session {i}".encode() for i in range(300)]


def replica(id: str, *, models: list[str] | None = None, running: int = 0, waiting: int = 0) -> Replica:
    models = ["m"] if models is None else models
    return Replica(id=id, boot="1", url="", pool="default", models=models, running=running, waiting=waiting)


def first(replicas: list[Replica], session: bytes) -> str:
    return rank_replicas(replicas, model="m", session=session, load=lambda r: r.running + r.waiting)[0].id


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": "Hello"}]} | fields).encode()


def test_conversations_are_shared_out_and_when_a_replica_goes_its_own_alone_move():
    replicas = [replica(id) for id in "abcd"]
    homes = {s: first(replicas, s) for s in SESSIONS}
    assert all(40 < n < 110 for n in Counter(homes.values()).values())
    left = [r for r in replicas if r.id != "b"]
    for session, home in homes.items():
        assert (first(left, session) == home) == (home != "b")


@given(st.permutations("abcde"), st.binary())
def test_every_gateway_chooses_alike_whatever_the_order_in_which_it_heard_of_the_replicas(ids: list[str], key: bytes):
    assert first([replica(id) for id in ids], key) == first([replica(id) for id in "abcde"], key)


def test_a_conversation_leaves_a_replica_that_is_much_busier_for_the_least_busy_one():
    for session in SESSIONS[:20]:
        home = first([replica(id) for id in "abc"], session)
        others = [replica(id, running=4) for id in "abc" if id != home]
        assert first([replica(home, running=16), *others], session) == home
        quiet = msgspec.structs.replace(others[0], running=3)
        assert first([replica(home, running=16), quiet, others[1]], session) == quiet.id


def test_one_that_has_the_model_is_asked_before_one_that_must_load_it():
    replicas = [replica("cold", models=[]), replica("able", running=500)]
    assert [first(replicas, s) for s in SESSIONS[:20]] == ["able"] * 20
    queue = [replica("cold", models=[]), replica("able", running=64, waiting=20)]
    assert [first(queue, s) for s in SESSIONS[:20]] == ["cold"] * 20


def test_a_model_that_nobody_has_is_loaded_in_one_place():
    assert len({first([replica(id, models=[]) for id in "abcd"], s) for s in SESSIONS}) == 1


def conversation(**fields: Any) -> bytes:
    return read_route(body(**fields)).conversation


def test_a_conversation_is_known_by_how_it_begins():
    system, hello = {"role": "system", "content": "s"}, {"role": "user", "content": "Hello"}
    more = [{"role": "assistant", "content": "Hi"}, {"role": "user", "content": "Who are you?"}]
    begun = conversation(messages=[system, hello], temperature=0)
    assert conversation(messages=[system, hello, *more], temperature=1) == begun
    assert conversation(messages=[system, more[1]]) != begun
    assert conversation(messages=[hello]) != begun


@pytest.mark.parametrize("given", [{"prompt_cache_key": "k"}, {"user": "k"}])
def test_a_conversation_that_is_named_is_known_by_its_name(given: dict[str, str]):
    assert conversation(**given) == conversation(messages=[], **given) != conversation()


@given(st.binary())
def test_a_body_that_is_not_a_chat_names_no_model(content: bytes):
    with pytest.raises(NoModel):
        read_route(content)


@pytest.mark.parametrize("messages", [None, 3, "x", [1], [[]], [{"role": 3}], [{}]])
def test_messages_that_are_not_messages_are_passed_on(messages: Any):
    assert read_route(body(messages=messages)).model == "m"


def test_a_long_name_of_a_model_is_cut():
    assert len(read_route(body(model="m" * 100_000)).model) == MAX_MODEL_ID + 1
