"""Opens an engine on a model's files: the one place that knows which engine that is."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass

from synth.inference.chat import ChatFormat
from synth.inference.policies import Loaded, ModelFiles
from synth.inference.settings import InferenceSettings
from synth.inference.tokenizers import load_tokenizer

_importing = threading.Lock()


def import_engine() -> None:
    """Import what the first model will need, which takes seconds; returns when it is imported, whoever began.

    One thread at a time: transformers loads its parts when they are first named, and two threads that name them at
    once can find one half made.
    """
    with _importing:
        import transformers.models.auto.modeling_auto
        import transformers.models.auto.tokenization_auto
        import transformers.models.qwen3.modeling_qwen3  # noqa: F401

        import synth.inference.engines.loading  # noqa: F401


@dataclass(frozen=True)
class Opening:
    """Loads files with the transformers engine, which raises `Permanent` for what it cannot serve."""

    settings: InferenceSettings

    async def __call__(self, files: ModelFiles) -> Loaded:
        # torch is imported after the process is healthy.
        await asyncio.to_thread(import_engine)
        from synth.inference.engines.settings import EngineSettings
        from synth.inference.engines.transformers import TransformersEngine

        settings = EngineSettings(
            threads=self.settings.threads,
            device=self.settings.device,
            kv_budget_bytes=self.settings.kv_budget_bytes,
            max_rows=self.settings.max_rows,
        )
        engine = await TransformersEngine.load(files.model_dir, adapter=files.adapter, version=0, settings=settings)
        if files.weights is not None:
            await engine.update_weights(files.weights, files.version)
            if files.copied:
                files.weights.unlink()
        return Loaded(engine, ChatFormat(load_tokenizer(files.model_dir)))
