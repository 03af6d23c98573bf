"""Where the files of a model come from."""

from __future__ import annotations

from pathlib import Path

import pytest
from obstore.store import MemoryStore

from synth.blobs import BlobStore
from synth.errors import Permanent
from synth.events import ModelRef
from synth.weights.local_model import local_model


async def test_a_path_of_the_model_hub_is_refused_if_the_hub_is_switched_off(tmp_path: Path) -> None:
    ref = ModelRef(id="Qwen/Qwen3-0.6B", kind="full", path="Qwen/Qwen3-0.6B")
    with pytest.raises(Permanent, match="SYNTH_MODEL_HUB"):
        await local_model(ref, BlobStore(MemoryStore(), None), tmp_path, hub=False)
