"""Where the backend is and who asks: flags, then the environment, then the nearest `.env` or the named files."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from synth.cli.errors import NotAuthorised, UsageProblem
from synth.runtime.env_file import read_env_file

#: The names of this machine's own loopback.
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
DEFAULT_BACKEND = "http://127.0.0.1:8000/api"


@dataclass(frozen=True)
class ConfigValue:
    """A setting and the place that it came from: "flag", "environment", a file's name, or "default"."""

    text: str
    origin: str


@dataclass(frozen=True)
class Config:
    """The settings that a command may need; a missing one is None."""

    backend: ConfigValue
    api_key: ConfigValue | None
    environment_key: ConfigValue | None
    task_url: ConfigValue | None

    @property
    def is_on_this_machine(self) -> bool:
        """Whether the backend is at an address of this machine alone."""
        return urlsplit(self.backend.text).hostname in LOOPBACK

    def require_api_key(self) -> str:
        """The API key. Raises `NotAuthorised` saying how to get one."""
        if self.api_key is None:
            raise NotAuthorised(
                "no API key",
                expected="SYNTH_API_KEY in the environment, or in a .env here or in a folder above",
                fix="`synthctl up` starts a cluster here and writes one to .env; for another cluster, ask who runs it, "
                "and keep it with `synthctl setup`",
            )
        return self.api_key.text


def find_env_file(folder: Path, *, home: Path) -> Path:
    """The `.env` of a folder or of the nearest folder above it that has one; the folder's own where none has.

    It looks as far as the folder that git's repository begins in, else as far as `home`; outside of both nowhere else,
    since a folder that others write in must not say where keys are sent.
    """
    above = [folder, *folder.parents]
    last = next((f for f in above if (f / ".git").exists()), home if home in above else folder)
    looked = above[: above.index(last) + 1]
    return next((f / ".env" for f in looked if (f / ".env").is_file()), folder / ".env")


def resolve(*, backend: str | None, env_files: Sequence[Path], optional: Collection[Path] = (Path(".env"),)) -> Config:
    """Read the configuration: of two files, the first that has a key says what it is.

    backend: the flag. optional: the files that need not be there. Raises `UsageProblem` for a file that is missing, and
    for an address that is not a URL.
    """
    for path in env_files:
        if path not in optional and not path.is_file():
            raise UsageProblem(f"there is no file {path}", expected="a file of KEY=value lines", where="--env-file")
    sources = [("environment", dict(os.environ)), *((str(path), read_env_file(path)) for path in env_files)]

    def find(*keys: str) -> ConfigValue | None:
        return next(
            (ConfigValue(values[key], origin) for origin, values in sources for key in keys if values.get(key)), None
        )

    address = (
        ConfigValue(backend, "flag") if backend else find("BACKEND_BASE_URL", "BACKEND_OVERRIDE")
    ) or ConfigValue(DEFAULT_BACKEND, "default")
    return Config(
        backend=ConfigValue(api_root(address), address.origin),
        api_key=find("SYNTH_API_KEY"),
        environment_key=find("ENVIRONMENT_API_KEY"),
        task_url=find("TASK_APP_URL"),
    )


def api_root(address: ConfigValue) -> str:
    """The address with exactly one `/api` at its end."""
    url = address.text.strip().rstrip("/")
    try:
        parts = urlsplit(url)
        host = parts.hostname
        _ = parts.port
    except ValueError:
        parts, host = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not host:
        raise UsageProblem(
            f"{address.text!r} is not the address of a backend",
            expected="a URL such as http://127.0.0.1:8000/api",
            where="--backend"
            if address.origin == "flag"
            else f"BACKEND_BASE_URL or BACKEND_OVERRIDE ({address.origin})",
        )
    return url if url.endswith("/api") else f"{url}/api"
