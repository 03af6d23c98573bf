"""Which inference replica a chat goes to: a conversation stays where its prefix is cached, while that one has room.

Every gateway chooses alike, as the choice is a function of the conversation and of what the replicas announce.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import msgspec

from synth.api.limits import MAX_MODEL_ID
from synth.bus.kv.replicas import Replica

#: A conversation moves when its replica has more than twice the requests of the least busy one, and these on top.
_IMBALANCE_SLACK = 8
#: Requests that wait at each replica that has a model before one that must load it first is worth asking.
_QUEUE_LIMIT = 16
#: Messages that a conversation is known by, at most: up to the user's first.
_MAX_OPENING_MESSAGES = 8

Load = Callable[[Replica], int]


class ChatRoute(msgspec.Struct, frozen=True):
    """Where a chat goes. model: its first `MAX_MODEL_ID` + 1 characters. conversation: a digest of its key."""

    model: str
    conversation: bytes


class _Chat(msgspec.Struct):
    model: str
    prompt_cache_key: Any = None
    user: Any = None
    messages: msgspec.Raw = msgspec.Raw(b"")
    instructions: Any = None
    input: msgspec.Raw = msgspec.Raw(b"[]")


class NoModel(Exception):
    """A body is not a chat that names a model."""


class _Message(msgspec.Struct):
    role: Any = None


def read_route(body: bytes) -> ChatRoute:
    """Read a call's model, and its conversation: `prompt_cache_key` or `user`, else its first messages.

    The inference service refuses messages that are not messages. Raises `NoModel`.
    """
    try:
        chat = msgspec.json.decode(body, type=_Chat)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise NoModel(str(error)) from error
    return ChatRoute(chat.model[: MAX_MODEL_ID + 1], hashlib.blake2b(_conversation(chat), digest_size=16).digest())


def _conversation(chat: _Chat) -> bytes:
    for name in ("prompt_cache_key", "user"):
        if isinstance(named := getattr(chat, name), str) and named:
            return f"{name}\0{named}".encode()
    try:
        if bytes(chat.messages):
            return b"messages\0" + _opening_messages(chat.messages)
        return b"input\0%s\0" % str(chat.instructions).encode() + _opening_messages(chat.input)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return b""


def _opening_messages(messages: msgspec.Raw) -> bytes:
    """The messages up to the user's first one, as they were sent: those that every later call repeats.

    messages: or the input of the Responses API, which may be one text.
    """
    if bytes(messages).startswith(b'"'):
        return bytes(messages)
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
