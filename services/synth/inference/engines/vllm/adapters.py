"""The adapters of one host: each version has its own name and id, and is loaded beside the versions before it.

An adapter is never replaced under its id: running requests would change weights mid-way, and the prefix cache, whose
keys hold the adapter's name, would be stale. A released version is unloaded when its last request ends.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from safetensors import SafetensorError, safe_open
from torch import Tensor

from synth.errors import Permanent, Transient
from synth.inference.engines.settings import EngineSettings
from synth.inference.engines.vllm import process
from synth.weights.tensor_file import save_tensors

log = logging.getLogger(__name__)

_WEIGHTS = "adapter_model.safetensors"
_CONFIG = "adapter_config.json"
_FOLDER = "synth-vllm-"


def make_host_folder() -> Path:
    """Make a folder for the files of one host, and remove the folders of services that were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_FOLDER}*-*"):
        pid = folder.name.removeprefix(_FOLDER).partition("-")[0]
        if pid.isdigit() and not _is_running(int(pid)):
            shutil.rmtree(folder, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{_FOLDER}{os.getpid()}-"))


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it runs, as another user
    return True


@dataclass(eq=False, slots=True)
class LoadedAdapter:
    """One loaded version. request: vLLM's LoRARequest for it. users: how many requests run on it."""

    request: Any
    folder: Path
    users: int = 0
    released: bool = False


class AdapterPool:
    """The adapters that one host holds, at most `max_adapters` of its settings.

    folder: keeps their files, because vLLM reads an adapter again after it has evicted it.
    layers: the names of the layers that an adapter can be over.
    """

    def __init__(self, llm: Any, folder: Path, settings: EngineSettings, *, layers: Collection[str]) -> None:
        self._llm = llm
        self._folder = folder
        self._settings = settings
        self._layers = layers
        self._ids = itertools.count(1)
        self._held: set[LoadedAdapter] = set()
        self._freed = asyncio.Event()
        self._unloading: set[asyncio.Task[None]] = set()
        self._awake = asyncio.Event()
        self._awake.set()

    def __len__(self) -> int:
        return len(self._held)

    async def load(self, tensors: dict[str, Tensor], config: dict[str, Any]) -> LoadedAdapter:
        """Load an adapter, as soon as there is room for it.

        tensors: by peft's names. config: peft's adapter configuration. Raises `Permanent` for an adapter that vLLM
        cannot serve, and `Transient` when there was no room for as long as a model may take to load, or when the
        engine process ends.
        """
        self._check_layers(tensors)

        def write(folder: Path) -> None:
            save_tensors(folder / _WEIGHTS, tensors)
            (folder / _CONFIG).write_text(json.dumps(config))

        return await self._load(write)

    async def load_folder(self, source: Path) -> LoadedAdapter:
        """Load a peft adapter directory, which may be deleted afterwards. Raises what `load` raises."""

        def copy(folder: Path) -> None:
            for name in (_WEIGHTS, _CONFIG):
                shutil.copyfile(source / name, folder / name)
            with cast(Any, safe_open(folder / _WEIGHTS, framework="pt")) as file:
                self._check_layers(file.keys())

        return await self._load(copy)

    async def _load(self, fill: Callable[[Path], None]) -> LoadedAdapter:
        from vllm.lora.request import LoRARequest  # pyright: ignore[reportMissingImports]

        await self._wait_for_free_place()
        number = next(self._ids)
        folder = self._folder / f"adapter-{number}"
        adapter = LoadedAdapter(LoRARequest(f"adapter-{number}", number, str(folder)), folder)
        self._held.add(adapter)
        try:
            folder.mkdir()
            await asyncio.to_thread(fill, folder)
            await process.call(self._llm, self._llm.add_lora(adapter.request), timeout=self._settings.call_s)
        except (Transient, asyncio.CancelledError):
            self.release(adapter)  # vLLM may have begun to load it
            raise
        except (OSError, SafetensorError) as error:
            self._forget(adapter)
            raise Permanent(f"the adapter cannot be read: {error}") from error
        except Permanent:
            self._forget(adapter)
            raise
        except Exception as error:
            self._forget(adapter)
            raise Permanent(f"vLLM cannot serve the adapter: {error}") from error
        return adapter

    async def _wait_for_free_place(self) -> None:
        most, seconds = self._settings.max_adapters, self._settings.start_s
        try:
            async with asyncio.timeout(seconds):
                while len(self._held) >= most:
                    self._freed.clear()
                    await self._freed.wait()
        except TimeoutError:
            raise Transient(
                f"the host holds {len(self._held)} adapters, old versions that still run included, and none of them "
                f"was let go of in {seconds:g} s (SYNTH_LOAD_TIMEOUT_S); expected fewer than {most} "
                "(SYNTH_MAX_ADAPTERS)",
                delay=5,
            ) from None

    @asynccontextmanager
    async def using(self, adapter: LoadedAdapter | None) -> AsyncIterator[Any]:
        """Yield vLLM's request for an adapter (None for the base), and keep the adapter loaded meanwhile."""
        if adapter is None:
            yield None
            return
        adapter.users += 1
        try:
            yield adapter.request
        finally:
            adapter.users -= 1
            self._unload_if_idle(adapter)

    def release(self, adapter: LoadedAdapter | None) -> None:
        """Start no more requests on an adapter, and unload it when its last one ends. Releasing None does nothing."""
        if adapter is not None:
            adapter.released = True
            self._unload_if_idle(adapter)

    async def pause(self) -> None:
        """Unload nothing until `resume`: the host is about to sleep, and an adapter is freed in its memory."""
        await self.wait_unloaded()
        self._awake.clear()

    def resume(self) -> None:
        """Unload the adapters that were released while it was paused."""
        self._awake.set()

    def close(self) -> None:
        """Stop unloading: the engine process is about to end, with all adapters in it."""
        for unloading in list(self._unloading):
            unloading.cancel()

    async def wait_unloaded(self) -> None:
        """Wait until every released adapter without requests is unloaded."""
        await asyncio.gather(*self._unloading)

    def _check_layers(self, tensors: Collection[str]) -> None:
        """Raise `Permanent` for layers that cannot have an adapter, which vLLM would silently leave out."""
        layers = {name.removeprefix("base_model.model.").partition(".lora_")[0] for name in tensors}
        unknown = sorted(layers.difference(self._layers))
        if unknown:
            raise Permanent(
                f"the adapter is over {len(unknown)} layers that the host serves without one, first {unknown[0]!r}; "
                "expected linear layers of attention and feed-forward, and of a vision model's projector and tower "
                "but for its attn.proj; merge it, or serve it with the engine 'transformers'"
            )

    def _unload_if_idle(self, adapter: LoadedAdapter) -> None:
        if adapter.released and adapter.users == 0 and adapter in self._held:
            task = asyncio.create_task(self._unload(adapter), name=f"unload {adapter.request.lora_name}")
            self._unloading.add(task)
            task.add_done_callback(self._unloading.discard)

    async def _unload(self, adapter: LoadedAdapter) -> None:
        await self._awake.wait()
        try:
            unloaded = self._llm.remove_lora(adapter.request.lora_int_id)
            await process.call(self._llm, unloaded, timeout=self._settings.call_s)
        except Transient as error:
            log.warning("%s was not unloaded: %s", adapter.request.lora_name, error)
        finally:
            self._forget(adapter)

    def _forget(self, adapter: LoadedAdapter) -> None:
        self._held.discard(adapter)
        self._freed.set()
        shutil.rmtree(adapter.folder, ignore_errors=True)
