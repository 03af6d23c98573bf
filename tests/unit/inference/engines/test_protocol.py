"""Every engine takes what the protocol says: a caller does not know which one it has."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from synth.inference.engines.protocol import Engine
from synth.inference.engines.transformers import TransformersEngine
from synth.inference.engines.vllm.engine import VllmEngine
from synth.inference.serving.turns import TurnTakingEngine

METHODS = [name for name, member in vars(Engine).items() if inspect.isfunction(member) and not name.startswith("_")]


@pytest.mark.parametrize("engine", [TransformersEngine, TurnTakingEngine, VllmEngine])
@pytest.mark.parametrize("method", METHODS)
def test_an_engine_has_the_parameters_of_the_protocol(engine: Any, method: str):
    expected = inspect.signature(getattr(Engine, method)).parameters
    found = inspect.signature(getattr(engine, method)).parameters
    assert {name: p.kind for name, p in found.items()} == {name: p.kind for name, p in expected.items()}
