"""Starts the processes of a cluster: each `synthd` is a fork of one of two parents, nats-server is a program."""

from __future__ import annotations

import asyncio
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from synth.local.cluster.plan import ProcessSpec
from synth.runtime.environment.child_environment import child_environment
from synth.runtime.forking.server import ForkedProcess, ForkServer

#: Services whose parent has imported torch and transformers.
_HEAVY = ("inference", "trainer")


@dataclass
class ServiceProcesses:
    """Starts processes. `close` ends the parents and their forks.

    data: the cluster's folder. environment: of the parents. log: their output.
    """

    data: Path
    environment: dict[str, str]
    log: Path
    _parents: dict[str, ForkServer] = field(default_factory=dict[str, ForkServer])
    _useless: set[str] = field(default_factory=set[str])
    _starting: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def prepare(self, specs: list[ProcessSpec]) -> None:
        """Start the parents of these processes. They begin with their imports."""
        self.log.unlink(missing_ok=True)
        for kind in {_kind(spec) for spec in specs if spec.synthd}:
            await self._parent(kind)

    async def start(self, spec: ProcessSpec) -> asyncio.subprocess.Process | ForkedProcess:
        """Start a process: as a fork if it can be one."""
        if spec.synthd and (process := await self._fork(spec)) is not None:
            return process
        return await spawn(spec)

    async def close(self) -> None:
        """End the parents."""
        for parent in self._parents.values():
            await parent.close()

    async def _fork(self, spec: ProcessSpec) -> ForkedProcess | None:
        """Fork a process. Returns None if its parent ends before the fork; its command then shows the cause."""
        kind = _kind(spec)
        if kind in self._useless:
            return None
        parent = await self._parent(kind)
        process = ForkedProcess(parent)
        with tempfile.TemporaryFile() as request, spec.log.open("ab") as log:
            first = {"arguments": spec.synthd, "environment": child_environment(spec.env)}
            request.write(msgspec.json.encode(first) + b"\n" + msgspec.json.encode(spec.env))
            request.seek(0)
            parent.fork(process, [request.fileno(), log.fileno()])
        if await process.forked():
            return process
        if not parent.has_forked:
            self._useless.add(kind)
        return None

    async def _parent(self, kind: str) -> ForkServer:
        async with self._starting:
            parent = self._parents.get(kind)
            if parent is None or not parent.alive:
                with self.log.open("ab") as log:
                    parent = await ForkServer.start(
                        "synth.service_parent", [kind, str(self.data)], self.environment, log.fileno()
                    )
                self._parents[kind] = parent
            return parent


def _kind(spec: ProcessSpec) -> str:
    return "heavy" if spec.synthd[0] in _HEAVY else "light"


async def spawn(spec: ProcessSpec) -> asyncio.subprocess.Process:
    """Start a process by its command, in a session of its own."""
    with spec.log.open("ab") as log:
        return await asyncio.create_subprocess_exec(
            *spec.command,
            env=spec.env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
