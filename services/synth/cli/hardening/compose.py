"""A Compose file as its containers: their settings with variables filled in, and what confines them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from synth.cli.hardening.findings import Finding
from synth.console.errors import CliError
from synth.runtime.environment.env_file import read_env_file

_VARIABLE = re.compile(r"\$\{(\w+)(?::?([-?])([^}]*))?\}|\$(\w+)")
_CONFINED = "read_only: true, cap_drop: [ALL], security_opt: [no-new-privileges:true], mem_limit and pids_limit"
_DIGEST = re.compile(r"@sha256:[0-9a-f]{64}$")
_FROM = re.compile(r"^FROM\s+(\S+:\S+)", re.MULTILINE)
_MONITOR = re.compile(r"""["']?\b(?:http|http_port|https|monitor_port)["']?\s*[:=]\s*["']?([^\s"',}]+)""")


@dataclass(frozen=True)
class Container:
    """A service of the file. entry: its mapping, and environment: its settings, with their variables filled in.

    ports: as `ADDRESS:PUBLISHED:PORT`. mounts: the volume or folder of each, and its path in the container.
    """

    name: str
    entry: Mapping[str, Any] = field(repr=False)
    environment: Mapping[str, str] = field(repr=False)
    ports: list[str]
    mounts: list[tuple[str, str]]


@dataclass(frozen=True)
class ComposeFile:
    """The file, and the variables that it requires and that neither its `.env` nor the environment sets."""

    path: Path
    containers: list[Container]
    missing: list[str]

    @classmethod
    def read(cls, path: Path) -> ComposeFile:
        """Read the file with the `.env` beside it. Raises `CliError` for one that is not there, or no Compose file."""
        import yaml

        try:
            document = yaml.safe_load(path.read_text(encoding="utf-8"))
            variables = read_env_file(path.with_name(".env")) | dict(os.environ)
            missing: set[str] = set()
            containers = [_container(n, _fill(e, variables, missing)) for n, e in document["services"].items()]
        except FileNotFoundError as error:
            raise CliError("there is no such file", expected="a Compose file", where=str(path)) from error
        except (yaml.YAMLError, KeyError, TypeError, AttributeError, UnicodeDecodeError) as error:
            raise CliError(f"not a Compose file ({type(error).__name__})", where=str(path)) from error
        return cls(path, containers, sorted(missing))

    def confinement(self) -> list[Finding]:
        """Check each container's privileges, published ports, images and mounts."""
        return [*self._privileges(), *self._ports(), *self._images(), *self._stores()]

    def _privileges(self) -> list[Finding]:
        loose = [c.name for c in self.containers if not _confined(c.entry)]
        if not loose:
            return [Finding("containers", "ok", f"{_CONFINED} for each", str(self.path))]
        observed = f"not confined: {', '.join(loose)}"
        return [Finding("containers", "failed", observed, str(self.path), f"each needs {_CONFINED}")]

    def _ports(self) -> list[Finding]:
        findings: list[Finding] = []
        for container in self.containers:
            for text in container.ports:
                user = container.environment.get("SYNTH_NATS_USER")
                if user == "gateway" and text.startswith("127.0.0.1:"):
                    continue
                fix = (
                    "publish it at 127.0.0.1, and put a proxy that ends TLS before it"
                    if user == "gateway"
                    else "remove it from `ports`: the other containers reach it without"
                )
                findings.append(Finding("ports", "failed", f"{container.name} publishes {text}", str(self.path), fix))
        return findings or [Finding("ports", "ok", "only the gateway is published, on loopback", str(self.path))]

    def _images(self) -> list[Finding]:
        images = {str(c.entry["image"]) for c in self.containers if "image" in c.entry}
        dockerfiles = {file for c in self.containers if (file := _dockerfile(c.entry, self.path.parent)) is not None}
        for file in dockerfiles:
            if not file.is_file():
                fix = "run it in the folder that the images are built in"
                return [Finding("images", "not checked", f"{file} is not here", str(self.path), fix)]
            images |= set(_FROM.findall(file.read_text(encoding="utf-8", errors="replace")))
        loose = sorted(image for image in images if not _DIGEST.search(image))
        if not loose:
            return [Finding("images", "ok", f"{len(images)} have digests", str(self.path))]
        fix = "`make digests` writes the digests, on a machine that reaches the registry"
        return [Finding("images", "warning", f"without a digest: {', '.join(loose)}", str(self.path), fix)]

    def _stores(self) -> list[Finding]:
        """Check that no two services share a folder for scratch, and the blob store is divided."""
        users: dict[str, list[str]] = {}
        for container in self.containers:
            for source, target in container.mounts:
                if target in ("/data", "/data/blobs"):
                    users.setdefault(source, []).append(container.name)
        if not (shared := {source: names for source, names in users.items() if len(names) > 1}):
            observed = "each container mounts the folders of the blob store that it needs"
            return [Finding("volumes", "ok", observed, str(self.path))]
        observed = "; ".join(f"{source} is whole in {', '.join(names)}" for source, names in shared.items())
        fix = "mount orgs, jobs and judging by themselves, as docs/operations.md has them"
        return [Finding("volumes", "failed", observed, str(self.path), fix)]

    def monitor(self) -> list[Finding]:
        """Check the address of the monitor of the file's nats-server, in the configuration that it mounts."""
        for container in self.containers:
            for source, _ in container.mounts:
                file = self.path.parent / source
                if not source.endswith("nats.conf") or not file.is_file():
                    continue
                return [_monitor(file)]
        return [Finding("bus monitor", "not checked", "no container mounts a nats.conf of this folder", str(self.path))]


def _monitor(file: Path) -> Finding:
    match = _MONITOR.search(file.read_text(encoding="utf-8", errors="replace"))
    address = match[1] if match else ""
    host = address.rpartition(":")[0].strip("[]")
    if not address or host.startswith("127.") or host in ("localhost", "::1"):
        return Finding("bus monitor", "ok", address or "it has none", str(file))
    fix = (
        "`synthd bus config` prints one that listens on loopback alone; the health check of the container needs no more"
    )
    return Finding("bus monitor", "failed", f"listens at {address}", str(file), fix)


def _confined(entry: Mapping[str, Any]) -> bool:
    return bool(
        entry.get("read_only") is True
        and entry.get("cap_drop") == ["ALL"]
        and "no-new-privileges:true" in entry.get("security_opt", ())
        and entry.get("mem_limit")
        and entry.get("pids_limit")
        and not {"privileged", "cap_add", "pid"} & entry.keys()
    )


def _dockerfile(entry: Mapping[str, Any], folder: Path) -> Path | None:
    build = entry.get("build")
    if isinstance(build, str):
        return folder / build / "Dockerfile"
    return folder / build.get("context", ".") / build.get("dockerfile", "Dockerfile") if build else None


def _container(name: str, entry: dict[str, Any]) -> Container:
    """Read what Compose writes in a short and in a long form."""
    variables = entry.get("environment", {})
    pairs = (str(item).partition("=")[::2] for item in variables) if isinstance(variables, list) else variables.items()
    environment = {str(name): "" if value is None else str(value) for name, value in pairs}
    ports = [_port(port) if isinstance(port, dict) else str(port) for port in entry.get("ports", ())]
    return Container(name, entry, environment, ports, [_mount(volume) for volume in entry.get("volumes", ())])


def _port(port: dict[str, Any]) -> str:
    parts = (port.get("host_ip"), port.get("published"), port["target"])
    return ":".join(str(part) for part in parts if part)


def _mount(volume: Any) -> tuple[str, str]:
    if isinstance(volume, dict):
        return str(volume.get("source", "")), str(volume["target"])
    source, _, rest = str(volume).partition(":")
    return source, rest.partition(":")[0]


def _fill(value: Any, variables: Mapping[str, str], missing: set[str]) -> Any:
    """Fill variables in as Compose does."""
    if isinstance(value, dict):
        return {key: _fill(item, variables, missing) for key, item in value.items()}
    if isinstance(value, list):
        return [_fill(item, variables, missing) for item in value]
    if not isinstance(value, str):
        return value

    def fill(match: re.Match[str]) -> str:
        name, kind, rest = match[1] or match[4], match[2], match[3]
        if text := variables.get(name, ""):
            return text
        if kind == "?":
            missing.add(name)
        return rest if kind == "-" else ""

    return _VARIABLE.sub(fill, value)
