"""Imports, once in the fork server, what every engine process needs."""

import vllm.v1.engine.async_llm  # pyright: ignore[reportMissingImports]
import vllm.v1.engine.core  # noqa: F401  # pyright: ignore[reportMissingImports]

import synth.inference.engines.vllm.banned_tokens
import synth.inference.engines.vllm.worker  # noqa: F401
