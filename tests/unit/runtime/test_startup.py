"""Threads that decode the same struct for the first time find it described: an incomplete description kills them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, cast

import msgspec
import pytest
from pydantic import SecretStr

from synth import service
from synth.cli.traces.read_ahead import ahead
from synth.errors import Problem, UserError
from synth.runtime.settings import ServiceSettings
from synth.runtime.startup import build_struct_types
from synth.taskapp.sdk import TaskApp

#: The threads in which the annotation of a struct was evaluated.
_evaluated: list[threading.Thread] = []


def _describe() -> object:
    _evaluated.append(threading.current_thread())
    return int


_FIELD = "_describe()"


def _new_struct() -> type[msgspec.Struct]:
    """Return a struct that nobody has decoded, inside another one."""
    inner = msgspec.defstruct("Inner", [("count", _FIELD)], module=__name__)
    _evaluated.clear()
    return msgspec.defstruct("Outer", [("inner", inner)], module=__name__)


def _describe_with_ahead() -> None:
    assert list(ahead([], str)) == []


def _describe_with_task_app() -> None:
    app = TaskApp("a", name="a", description="", keys=["k"])
    app.episode(lambda episode: None)
    app.asgi()


@pytest.mark.parametrize("describe", [build_struct_types, _describe_with_ahead, _describe_with_task_app])
def test_a_struct_is_described_before_a_thread_decodes_it(describe: Callable[[], Any]):
    outer = _new_struct()
    describe()
    assert _evaluated == [threading.current_thread()]
    decoded = list(ahead([b'{"inner":{"count":1}}'] * 8, lambda line: msgspec.json.decode(line, type=outer)))
    assert len(decoded) == 8
    assert len(_evaluated) == 1


async def test_a_service_describes_structs_before_it_connects(tmp_path, monkeypatch):
    def connect(settings: ServiceSettings, name: str) -> None:
        raise UserError(Problem(what="no bus"))

    monkeypatch.setattr(service, "connect", connect)
    settings = ServiceSettings(cluster_secret=SecretStr("k" * 32), work_dir=tmp_path)
    _new_struct()
    with pytest.raises(UserError, match="no bus"):
        await service.serve("verifier", settings, cast(Any, None))
    assert _evaluated == [threading.current_thread()]


def test_a_struct_that_cannot_be_decoded_hinders_no_other_one():
    class Broken(msgspec.Struct):
        field: NotImported  # type: ignore[name-defined] # noqa: F821

    _new_struct()
    build_struct_types()
    assert len(_evaluated) == 1
    del Broken
