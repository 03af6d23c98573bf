"""The plugin that vLLM loads in each of its processes (entry point `vllm.general_plugins`).

In every process it registers the file backend for full weights, under the name that the host uses. In an engine
process it also starts a thread that ends the process as soon as the service has ended, for any reason.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from multiprocessing.connection import wait

from synth.inference.engines.vllm.plugin.torchvision_free import make_qwen3_vl_loadable

FILE_BACKEND = "synth_file"


def register() -> None:
    """Register the plugin. vLLM calls this once in each process."""
    from vllm.distributed.weight_transfer import (  # pyright: ignore[reportMissingImports]
        WeightTransferEngineFactory,
    )

    make_qwen3_vl_loadable()
    WeightTransferEngineFactory.register_engine(
        FILE_BACKEND, "synth.inference.engines.vllm.plugin.worker", "FileTransfer"
    )
    parent = multiprocessing.parent_process()
    if parent is not None:
        _adapt_to_cpu()
        # An EngineCore does not notice that its service was killed: one ran on for ten minutes. (The kernel's
        # parent-death signal does not help: the parent is the fork server, which lives as long as its children.)
        threading.Thread(target=_end_after, args=(parent.sentinel,), name="ends-with-parent", daemon=True).start()


def _adapt_to_cpu() -> None:
    from vllm.platforms import current_platform  # pyright: ignore[reportMissingImports]

    if current_platform.is_cpu():
        from synth.inference.engines.vllm.plugin.cpu_experts import compute_experts_beside_adapters

        compute_experts_beside_adapters()


def _end_after(sentinel: int) -> None:
    wait([sentinel])
    os.kill(os.getpid(), signal.SIGKILL)
