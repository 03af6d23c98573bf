"""Imports, once in the fork server, the modules that every engine process needs."""

import vllm.v1.engine.async_llm  # pyright: ignore[reportMissingImports]
import vllm.v1.engine.core  # noqa: F401  # pyright: ignore[reportMissingImports]

import synth.inference.engines.vllm.plugin.logits
import synth.inference.engines.vllm.plugin.worker  # noqa: F401
