"""The names of the keys of judges' APIs: stored, listed and forgotten through the backend."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

import msgspec

if TYPE_CHECKING:
    from synth.cli.api.client import Client


class StoredJudgeKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key that was just stored. origin: scheme, host and port, the one place that it is sent to."""

    name: str
    origin: str


class JudgeKeyName(msgspec.Struct, frozen=True, kw_only=True):
    """A stored key. The API returns only its name."""

    name: str


def add_judge_key(client: Client, name: str, key: str, *, url: str) -> StoredJudgeKey:
    """Keep a key for the API at this address, in place of an earlier one of this name."""
    return client.request("POST", "/judge-keys", StoredJudgeKey, json={"name": name, "key": key, "url": url})


def judge_keys(client: Client) -> list[JudgeKeyName]:
    """Return the names of all stored keys."""
    return client.list_of("/judge-keys", JudgeKeyName)


def remove_judge_key(client: Client, name: str) -> JudgeKeyName:
    """Forget a key."""
    return client.request("DELETE", f"/judge-keys/{quote(name, safe='')}", JudgeKeyName)
