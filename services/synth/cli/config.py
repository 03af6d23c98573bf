"""Where the backend is and who asks: flags, then the environment, then `./.env`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from synth.cli.errors import NotAuthorised, UsageProblem
from synth.env_file import read_env_file

DEFAULT_BACKEND = "http://127.0.0.1:8000/api"


@dataclass(frozen=True)
class Value:
    """A setting and the place that it came from: "flag", "environment", a file's name, or "default"."""

    text: str
    origin: str


@dataclass(frozen=True)
class Config:
    """Everything that a command may need to know of its surroundings; a missing value is None."""

    backend: Value
    api_key: Value | None
    environment_key: Value | None
    task_url: Value | None

    def require_api_key(self) -> str:
        """The API key. Raises `NotAuthorised` saying how to get one."""
        if self.api_key is None:
            raise NotAuthorised(
                "no API key",
                expected="SYNTH_API_KEY in the environment or in ./.env",
                fix="`synthctl up` starts a cluster here and writes one to .env; for another cluster, ask who runs it",
            )
        return self.api_key.text


def resolve(*, backend: str | None, env_file: Path) -> Config:
    """Read the configuration. backend: the flag. Raises `UsageProblem` for an address that is not a URL."""
    if str(env_file) != ".env" and not env_file.is_file():
        raise UsageProblem(f"there is no file {env_file}", expected="a file of KEY=value lines", where="--env-file")
    file = read_env_file(env_file)

    def find(key: str) -> Value | None:
        if os.environ.get(key):
            return Value(os.environ[key], "environment")
        return Value(file[key], str(env_file)) if file.get(key) else None

    address = Value(backend, "flag") if backend else find("BACKEND_BASE_URL") or Value(DEFAULT_BACKEND, "default")
    return Config(
        backend=Value(api_root(address), address.origin),
        api_key=find("SYNTH_API_KEY"),
        environment_key=find("ENVIRONMENT_API_KEY"),
        task_url=find("TASK_APP_URL"),
    )


def api_root(address: Value) -> str:
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
            where="--backend" if address.origin == "flag" else f"BACKEND_BASE_URL ({address.origin})",
        )
    return url if url.endswith("/api") else f"{url}/api"
