"""`synthd NAME`: one service as one process. `synthd bus init` provisions the bus, `synthd bus check` compares it."""

from __future__ import annotations

import asyncio
import importlib
import sys

from synth.bus.connection import connect
from synth.bus.server.provision import drift, provision
from synth.bus.server.topology import SERVICES, topology
from synth.runtime import logs
from synth.runtime.settings import ServiceSettings

_USAGE = f"usage: synthd {{{'|'.join(SERVICES)}}}  |  synthd bus init|check"


def main(argv: list[str] | None = None) -> None:
    """Run what the command line names; exits with its code."""
    match list(sys.argv[1:] if argv is None else argv):
        case ["bus", ("init" | "check") as action]:
            sys.exit(asyncio.run(_bus(action)))
        case [name] if name in SERVICES:
            sys.exit(importlib.import_module(f"synth.{name}.app").main())
        case _:
            sys.stderr.write(_USAGE + "\n")
            sys.exit(2)


class BusSettings(ServiceSettings):
    """What `synthd bus` needs beside the shared settings."""

    pools: str = "default"
    """Every worker pool of the cluster, separated by commas; each has a task queue of each kind."""


async def _bus(action: str) -> int:
    settings = BusSettings()
    logs.configure("bus", level=settings.log_level)
    bus = await connect(settings, "bus")
    try:
        wanted = topology(pools=tuple(p.strip() for p in settings.pools.split(",")))
        if action == "init":
            await provision(bus.js, wanted)
            return 0
        differences = await drift(bus.js, wanted)
        for line in differences:
            sys.stdout.write(line + "\n")
        return 1 if differences else 0
    finally:
        await bus.close()


if __name__ == "__main__":
    main()
