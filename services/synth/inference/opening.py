"""Opens an engine on a model's files: the one place that knows which engine that is."""

from __future__ import annotations

from dataclasses import dataclass

from synth.errors import Permanent
from synth.inference.chat import ChatFormat
from synth.inference.policies import Loaded, ModelFiles
from synth.inference.settings import InferenceSettings
from synth.inference.tokenizers import load_tokenizer


def import_engine() -> None:
    """Import what the first model will need, which takes seconds."""
    import transformers.models.auto.modeling_auto
    import transformers.models.auto.tokenization_auto
    import transformers.models.qwen3.modeling_qwen3  # noqa: F401

    import synth.inference.engines.loading  # noqa: F401


@dataclass(frozen=True)
class Opening:
    """Loads files with the transformers engine. Raises `Permanent` for what it cannot serve."""

    settings: InferenceSettings

    async def __call__(self, files: ModelFiles) -> Loaded:
        # torch is imported after the process is healthy, by `import_engine` or by the first model.
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
            proof = await engine.update_weights(files.weights, files.version)
            if proof.matched != proof.tensors:
                raise Permanent(f"policy version {files.version}: {proof.tensors - proof.matched} tensors differ")
        return Loaded(engine, ChatFormat(load_tokenizer(files.model_dir)))
