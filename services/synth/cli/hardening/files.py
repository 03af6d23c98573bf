"""Files with secrets and data: who on this machine may read them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from synth.cli.hardening.deployment import SeenDeployment
from synth.cli.hardening.findings import Finding
from synth.client.connections.known_origins import known_origins_file

#: Settings of services that name a file with a private key.
_KEY_FILES = ("SYNTH_NATS_KEY", "SYNTH_NATS_SERVER_KEY")
_OTHERS = 0o077


def check_files(deployment: SeenDeployment, env_files: Iterable[Path]) -> list[Finding]:
    """Check the modes of the files that hold keys, and of the folder of the cluster's data."""
    folder = deployment.compose.path.parent if deployment.compose is not None else None
    beside = [folder / ".env", *(folder / ".store").glob("*.env")] if folder is not None else []
    named = [Path(value) for s in deployment.services for name in _KEY_FILES if (value := s.environment.get(name))]
    data = deployment.data
    places = (*env_files, *beside, *named, known_origins_file(), data / "cluster.json", data / "nats" / "nats.conf")
    files = [file for file in {place.resolve(): place for place in places}.values() if file.is_file()]
    return [_keys(files), _data(data)]


def _keys(files: list[Path]) -> Finding:
    if os.name != "posix":
        why = "this system has no modes of files"
        return Finding("key files", "not checked", why, fix="look at the rights of .env yourself")
    if not files:
        why = "there is no .env, no folder of a cluster and no file of a key here"
        return Finding("key files", "not checked", why, fix="run it in the folder of the deployment")
    if loose := [file for file in files if file.stat().st_mode & _OTHERS]:
        names = " ".join(map(str, loose))
        observed = f"other users may read or write {len(loose)} of {len(files)}"
        return Finding("key files", "failed", observed, names, f"chmod 600 {names}")
    return Finding("key files", "ok", "readable by their owner alone", ", ".join(map(str, files)))


def _data(data: Path) -> Finding:
    if not data.is_dir():
        fix = "name its folder with --data; volumes of containers are the container runtime's"
        return Finding("data folder", "not checked", "no cluster of `synthctl up` has its data here", str(data), fix)
    mode = data.stat().st_mode & 0o777
    if mode & _OTHERS:
        observed = f"mode {mode:o}: other users of this machine may read datasets, models and rollouts"
        return Finding("data folder", "warning", observed, str(data), f"chmod 700 {data}")
    return Finding("data folder", "ok", f"mode {mode:o}", str(data))
