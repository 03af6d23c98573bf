"""`python -m synth.service_parent FD KIND DATA`: the parent of the services of a cluster on one machine.

`synth.runtime.forking.parent` describes the socket FD. A request has two file descriptors: a file, and the log of the
service. The file has a `ServiceProcess` as a line of JSON, and after it the service's whole environment with its keys.
KIND is `light`, or `heavy` for services that compute: their parent imports torch and transformers. DATA, the folder of
the cluster, is shown in the list of processes.

A parent imports no module of a service: the metrics of that service would then be reported by all.
"""

from __future__ import annotations

import functools
import importlib
import os
import socket
import sys

import msgspec
import setproctitle

from synth.runtime.forking.parent import ForkParent, can_fork
from synth.runtime.startup import build_struct_types, collector_off

#: Modules that most services use, and that import much.
_LIGHT = (
    "fastapi",
    "synth.bus.delivery",
    "synth.bus.kv.replicas",
    "synth.bus.tasks.worker",
    "synth.jobs.parse.validate",
    "synth.models",
    "synth.outbound.http_guard",
    "synth.service",
    "synth.synthd",
)
_HEAVY = ("synth.trainer.learner.main",)


class ServiceProcess(msgspec.Struct):
    """A service to start. arguments: of `synthd`. environment: what its child processes may have of it."""

    arguments: list[str]
    environment: dict[str, str]


def main() -> None:
    """Import the modules of the services, and serve the socket until it closes. If nothing can fork here, end."""
    control, heavy, data = socket.socket(fileno=int(sys.argv[1])), sys.argv[2] == "heavy", sys.argv[3]
    setproctitle.setproctitle(f"synthd ({sys.argv[2]} parent) {data}")
    with collector_off():
        for module in (*_LIGHT, *(_HEAVY if heavy else ())):
            importlib.import_module(module)
        if heavy:
            importlib.import_module(_HEAVY[0]).warm_up()
        build_struct_types()
    if sys.platform != "linux" or (heavy and not can_fork()):
        os._exit(0)
    parent = ForkParent(control)

    def start(fds: list[int]) -> int:
        return parent.fork(functools.partial(_run, fds, data))

    parent.serve(start, descriptors=2)


def _run(fds: list[int], data: str) -> None:
    """Be the service. fds: of the request."""
    os.setsid()
    for number in (1, 2):
        os.dup2(fds[1], number)
    os.close(fds[1])
    # Without a buffer, nothing is read beyond the line.
    with open(fds[0], "rb", buffering=0) as file:
        service = msgspec.json.decode(file.readline(), type=ServiceProcess)
        _set_environment(service.environment)
        sys.argv = ["synthd", *service.arguments]
        setproctitle.setproctitle(f"synthd {' '.join(service.arguments)} {data}")
        if service.arguments == ["trainer"]:
            # While this process has read no key.
            importlib.import_module("synth.trainer.owner.processes.training_forks").fork_parent(file.fileno())
        _set_environment(msgspec.json.decode(file.readall(), type=dict[str, str]))
    importlib.import_module("synth.synthd").program()


def _set_environment(environment: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)


if __name__ == "__main__":
    main()
