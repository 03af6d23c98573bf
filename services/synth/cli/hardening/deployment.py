"""The services of a deployment, as far as this machine can see them: their settings, and where those were read.

Sources: the cluster of `synthctl up`, processes of `synthd` on this machine, and a Compose file with its `.env`.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from synth.cli.hardening.compose import ComposeFile
from synth.events.catalogue import SERVICES

#: Begins the place of services that `synthctl up` started.
EMBEDDED = "synthctl up"
#: Every service is started as `synthd NAME` or `python -m synth.synthd NAME`.
_PROGRAMS = ("synthd", "synth.synthd")
#: The title of a service that `synthctl up` forked.
_FORK = re.compile(r"synthd [a-z]+ (.+)")


@dataclass(frozen=True)
class SeenService:
    """A service with its settings. place: the source of its settings. port: the one it listens on, on this machine."""

    name: str
    environment: Mapping[str, str] = field(repr=False)
    place: str
    port: int | None = None


@dataclass(frozen=True)
class SeenDeployment:
    """Everything that is visible from this machine. unseen: why a source could not be read, by its name.

    embedded: `services` were started by `synthctl up`. monitor_port: of its nats-server.
    """

    services: list[SeenService]
    compose: ComposeFile | None
    data: Path
    embedded: bool = False
    monitor_port: int | None = None
    unseen: dict[str, str] = field(default_factory=dict[str, str])


def read_deployment(data: Path, compose: Path | None) -> SeenDeployment:
    """Read what runs on this machine and the Compose file. compose: None reads none."""
    unseen: dict[str, str] = {}
    file = None
    if compose is not None:
        if importlib.util.find_spec("yaml") is None:
            unseen["compose"] = f'{compose} needs PyYAML: pip install "synthctl[cluster]"'
        else:
            file = ComposeFile.read(compose)
    if importlib.util.find_spec("psutil") is None or importlib.util.find_spec("nats") is None:
        unseen["processes"] = 'only the client is installed: pip install "synthctl[cluster]"'
        return SeenDeployment(_of_compose(file), file, data, unseen=unseen)
    embedded, monitor_port = _of_cluster(data)
    services = embedded or _of_processes(unseen)
    if not services:
        unseen.setdefault("processes", "no service of your user runs on this machine")
    return SeenDeployment([*services, *_of_compose(file)], file, data, bool(embedded), monitor_port, unseen)


def host_and_port(url: str) -> tuple[str, int]:
    """Return the host and port of a server in SYNTH_NATS_URL."""
    parts = urlsplit(url if "://" in url else f"nats://{url}")
    return parts.hostname or "", parts.port or 4222


def _of_compose(file: ComposeFile | None) -> list[SeenService]:
    if file is None:
        return []
    ours = [c for c in file.containers if c.environment.get("SYNTH_NATS_USER")]
    return [SeenService(c.name, c.environment, str(file.path)) for c in ours]


def _of_cluster(data: Path) -> tuple[list[SeenService], int | None]:
    """Return the services of the cluster that runs in this folder, and its bus's monitoring port.

    They are forks, whose environment the kernel does not show. Their environment is their supervisor's, plus the
    settings that `synthctl up` adds.
    """
    import psutil

    from synth.local.cluster.plan import make_plan
    from synth.local.cluster.state import StateFile
    from synth.local.processes.running import is_alive

    state = StateFile(data).read()
    if state is None or not is_alive(state.supervisor_pid, state.supervisor_started):
        return [], None
    try:
        environment = psutil.Process(state.supervisor_pid).environ()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return [], None
    names = tuple(p.name for p in state.processes if p.name != "nats")
    kinds = tuple(dict.fromkeys(name.partition("-")[0] for name in names))
    plan = make_plan(state, data, kinds, environment=environment)
    services = [SeenService(spec.name, spec.env, f"{EMBEDDED} in {data}", spec.port) for spec in plan.services]
    return services, state.nats_http_port


def _of_processes(unseen: dict[str, str]) -> list[SeenService]:
    """Return the services that run on this machine by their own command, and that this user may look into."""
    import psutil

    services: list[SeenService] = []
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
            if words and (title := _FORK.match(words[0])):
                # The kernel shows the environment of its parent.
                unseen["processes"] = f"`synthctl up` runs in {title[1]}: name it with --data"
                continue
            at = next((n for n, word in enumerate(words[:-1]) if Path(word).name in _PROGRAMS), None)
            if at is None or words[at + 1] not in SERVICES:
                continue
            environment = process.environ()
        except psutil.AccessDenied:
            unseen["processes"] = "some processes belong to another user: run it as that user"
            continue
        except psutil.NoSuchProcess:
            continue
        port = int(environment.get("SYNTH_PORT", "0") or 0) or None
        services.append(SeenService(f"{words[at + 1]} (pid {process.pid})", environment, "this machine", port))
    return services
