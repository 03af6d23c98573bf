"""A chat API behind an address, and a file of rows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.backend import backend_that
from tests.unit.cli.checking import Run
from tests.unit.cli.comparison.chat_api import KEY, ChatApi


def sums(count: int) -> list[dict[str, Any]]:
    return [
        {"messages": [{"role": "user", "content": f"{n} + {n} ="}, {"role": "assistant", "content": str(2 * n)}]}
        for n in range(count)
    ]


def write_rows(rows: list[dict[str, Any]], name: str = "sums.jsonl") -> None:
    Path(name).write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def adds(model: str, text: str) -> str:
    """The model `good` adds; any other one only for even numbers."""
    n = int(text.split()[0])
    return str(2 * n if model == "good" or n % 2 == 0 else 2 * n + 1)


@pytest.fixture(autouse=True)
def without_a_cluster(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SYNTH_API_KEY")


@pytest.fixture
def api() -> ChatApi:
    return ChatApi(adds)


@pytest.fixture
def url(api: ChatApi, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with backend_that(api) as (backend, _):
        yield backend.url.removesuffix("/api") + "/v1"
