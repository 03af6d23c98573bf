"""A cluster whose services see the mounts of `docker-compose.yml` alone: `python -m tests.e2e.mounted_services DATA`.

Each service has a mount namespace of its own, as its container has. The root is read-only, `/mnt` holds the folders
that Compose mounts, writable or read-only as Compose says, and the folder of the cluster is hidden.
"""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from synth.events.catalogue import SERVICES
from synth.local.cluster.plan import ClusterPlan, ProcessSpec, make_plan
from synth.local.cluster.state import StateFile
from synth.local.cluster.supervisor import Supervisor

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
#: A folder that every machine has, and that holds nothing of ours.
_PLACE = "/mnt"
# $1: the folder to hide; then SOURCE TARGET MODE for each mount, `--`, and the command.
_SCRIPT = f"""
set -e
hidden=$1; shift
mount -t tmpfs tmpfs {_PLACE}
mkdir {_PLACE}/tmp
mkdir -p {_PLACE}/data/blobs
while [ "$1" != -- ]; do
    mkdir -p "{_PLACE}$2"
    mount --bind "$1" "{_PLACE}$2"
    [ "$3" != ro ] || mount -o remount,bind,ro "{_PLACE}$2"
    shift 3
done
shift
mount -t tmpfs -o ro tmpfs "$hidden"
mount -o remount,bind,ro /
cd /
exec "$@"
"""
_NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount")
#: What names a path inside of a container.
_PATHS = ("SYNTH_BLOB_URL", "SYNTH_MODELS_DIR", "SYNTH_WORK_DIR", "SYNTH_READ_MODEL_PATH")


def can_mount() -> bool:
    """Whether this machine lets its users mount in a namespace of their own."""
    if shutil.which("unshare") is None:
        return False
    command = [*_NAMESPACE, "mount", "-t", "tmpfs", "tmpfs", _PLACE]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def mounts(service: str) -> list[tuple[str, str, str]]:
    """Return the mounts of a container: the volume or the folder, where it is mounted, and `ro` or `rw`."""
    parts = [volume.split(":") for volume in COMPOSE["services"][service]["volumes"]]
    return [(part[0], part[1], part[2] if part[2:] else "rw") for part in parts]


def mounted(plan: ClusterPlan) -> ClusterPlan:
    """Return the plan with each service in a namespace that has the mounts of its container."""
    services, volumes = [_mounted(plan.data, spec) for spec in plan.services], plan.data / "volumes"
    # `bus init` has every folder of the blob store, to each of which it gives the store's id.
    provision = dataclasses.replace(plan.provision, env=plan.provision.env | {"SYNTH_BLOB_URL": f"file:{volumes}"})
    return dataclasses.replace(plan, services=services, provision=provision, blobs=volumes)


def _mounted(data: Path, spec: ProcessSpec) -> ProcessSpec:
    arguments: list[str] = []
    for source, target, mode in mounts(spec.name):
        folder = data / "models" if source.startswith(".") else data / "volumes" / source
        folder.mkdir(parents=True, exist_ok=True)
        arguments += [str(folder), target, mode]
    paths = {name: value for name, value in COMPOSE["services"][spec.name]["environment"].items() if name in _PATHS}
    paths["SYNTH_BLOB_URL"] = paths["SYNTH_BLOB_URL"].removeprefix("${SYNTH_BLOB_URL:-file:").removesuffix("}")
    env = spec.env | {name: f"{_PLACE}{path}" for name, path in paths.items()}
    env["SYNTH_BLOB_URL"] = f"file:{env['SYNTH_BLOB_URL']}"
    env |= {"TMPDIR": f"{_PLACE}/tmp", "XDG_CACHE_HOME": f"{_PLACE}/data/work/cache"}
    command = [*_NAMESPACE, "sh", "-c", _SCRIPT, spec.name, str(data), *arguments, "--", *spec.command]
    return dataclasses.replace(spec, synthd=(), command=command, env=env)


def main() -> None:
    """Run the cluster whose state was prepared in DATA, until SIGTERM."""
    data = Path(sys.argv[1])
    file = StateFile(data)
    with file.locked():
        state = file.read()
        assert state is not None
        plan = mounted(make_plan(state, data, SERVICES))
        asyncio.run(Supervisor(plan, state, file, print).run())


if __name__ == "__main__":
    main()
