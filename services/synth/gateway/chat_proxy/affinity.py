"""Which inference replica a chat goes to: a conversation stays where its prefix is cached, while that one has room.

Every gateway chooses alike, as the choice is a function of the conversation and of what the replicas announce.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from synth.bus.kv.replicas import Replica

#: A conversation moves when its replica has more than twice the requests of the least busy one, and these on top.
_IMBALANCE_SLACK = 8
#: Requests that wait at each replica that has a model before one that must load it first is worth asking.
_QUEUE_LIMIT = 16
#: Messages that a conversation is known by, at most: up to the user's first.
_MAX_OPENING_MESSAGES = 8

Load = Callable[[Replica], int]


class _Chat(msgspec.Struct):
    prompt_cache_key: Any = None
    user: Any = None
    messages: msgspec.Raw = msgspec.Raw(b"[]")


class _Message(msgspec.Struct):
    role: Any = None


def session_key(headers: Mapping[str, str], body: bytes) -> bytes:
    """The key of a conversation: X-Session-Id, `prompt_cache_key` or `user`, else its first messages.

    b"" for a body that is not a chat's: whoever answers it says so.
    """
    if session := headers.get("x-session-id"):
        return b"session\0" + session.encode()
    try:
        chat = msgspec.json.decode(body, type=_Chat)
        for name in ("prompt_cache_key", "user"):
            if isinstance(named := getattr(chat, name), str) and named:
                return f"{name}\0{named}".encode()
        return b"messages\0" + _opening_messages(chat.messages)
    except msgspec.DecodeError:
        return b""


def _opening_messages(messages: msgspec.Raw) -> bytes:
    """The messages up to the user's first one, as they were sent: those that every later call repeats."""
    begins: list[bytes] = []
    for message in msgspec.json.decode(messages, type=list[msgspec.Raw])[:_MAX_OPENING_MESSAGES]:
        begins.append(bytes(message))
        if msgspec.json.decode(message, type=_Message).role == "user":
            break
    return b"\0".join(begins)


def rank_replicas(replicas: list[Replica], *, model: str, session: bytes, load: Load) -> list[Replica]:
    """The replicas in the order to try them: those that have the model before those that must load it.

    load: requests that a replica has. By rendezvous hashing: when a replica comes or goes, its own conversations alone
    move.
    """
    able = _by_rendezvous([r for r in replicas if model in r.models], session, load)
    # By the model alone, so that its first calls do not load it everywhere.
    cold = _by_rendezvous([r for r in replicas if model not in r.models], model.encode(), load)
    if able and cold and min(r.waiting for r in able) >= _QUEUE_LIMIT and not cold[0].waiting:
        return [cold[0], *able, *cold[1:]]
    return [*able, *cold]


def _by_rendezvous(replicas: list[Replica], key: bytes, load: Load) -> list[Replica]:
    ranked = sorted(replicas, key=lambda r: hashlib.blake2b(r.id.encode() + b"\0" + key, digest_size=8).digest())
    if not ranked:
        return ranked
    least = min(ranked, key=load)
    if load(ranked[0]) > 2 * load(least) + _IMBALANCE_SLACK:
        ranked.remove(least)
        ranked.insert(0, least)
    return ranked
