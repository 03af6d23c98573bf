"""Which weights answer under an id."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
from safetensors.numpy import save_file

from synth.blobs import BlobStore
from synth.bus.connection import Connection
from synth.inference.serving.model_pool import ModelFiles, ModelPool, ServedModel
from synth.inference.serving.router import ModelRouter
from synth.models import Registry


class Idle:
    healthy = True

    async def close(self) -> None:
        """Nothing runs."""


async def test_another_stand_in_is_what_answers_from_then_on(tmp_path: Path):
    opened: list[str] = []

    async def open_files(files: ModelFiles) -> ServedModel:
        opened.append(files.model_dir.name)
        return ServedModel(cast(Any, Idle()), cast(Any, None))

    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text('{"model_type": "qwen3"}')
        save_file({"weight": np.zeros(1, np.float32)}, tmp_path / name / "model.safetensors")
    registry = Registry(tmp_path)
    # A base is found without the bus, and a folder without the blob store.
    router = ModelRouter(cast(Connection, None), cast(BlobStore, None), tmp_path / "cache", registry)
    model_pool = ModelPool(router.files_of, open_files, max_models=2, load_timeout=20)
    router.attach_model_pool(model_pool)

    async def answer() -> None:
        async with router.for_model("qwen/qwen3-0.6b", "org_1") as binding:
            assert binding.model == "Qwen/Qwen3-0.6B"

    for stand_in in ("one", "two"):
        registry.alias("Qwen/Qwen3-0.6B", stand_in)
        await answer()
        await answer()
    assert opened == ["one", "two"]
    assert model_pool.names() == ["Qwen/Qwen3-0.6B"]
    await model_pool.close()
