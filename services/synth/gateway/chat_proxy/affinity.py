"""The choice of a chat's inference replica: a conversation stays at the replica with its cached prefix, if it has room.

Every gateway makes the same choice, which depends only on the conversation and on the announcements of the replicas.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import msgspec

from synth.api.limits import MAX_MODEL_ID
from synth.bus.kv.replicas import Replica

#: A conversation moves if its replica has more than twice the requests of the least busy replica plus this number.
_IMBALANCE_SLACK = 8
#: When this many requests wait at each replica that has the model, a replica that must first load it is tried.
_QUEUE_LIMIT = 16
#: The most messages that identify a conversation: up to the user's first message.
_MAX_OPENING_MESSAGES = 8

Load = Callable[[Replica], int]


class ChatRoute(msgspec.Struct, frozen=True):
    """The route of a chat. model: its first `MAX_MODEL_ID` + 1 characters. conversation: a digest of its key."""

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
    """The error for a body that is not a chat with a model."""


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
    """Return the messages up to the user's first one, as they were sent, which every later call repeats.

    messages: also the input of the Responses API, which may be one text.
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
    """Return the replicas in the order to try them: replicas with the model before replicas that must load it.

    load: requests that a replica has. With rendezvous hashing, a replica that joins or leaves moves only its own
    conversations.
    """
    able = _by_rendezvous([r for r in replicas if model in r.models], session, load)
    # Hash only the model, so that its first calls do not load it on every replica.
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
