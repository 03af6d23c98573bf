"""The backend's address and the keys: flags, then the environment, then the nearest `.env` or the named files."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from synth.base_url import base_url_fault
from synth.client.connections.origins import is_loopback
from synth.console.errors import NotAuthorised, UsageProblem
from synth.runtime.environment.env_file import read_env_file

#: The origin of a value that a variable of the user's environment has.
ENVIRONMENT = "environment"
#: The origin of a value that a program gives to its client.
ARGUMENT = "argument"
#: A key and an address that both come from one of these are a pair.
PAIRED = (ENVIRONMENT, ARGUMENT)
DEFAULT_BACKEND = "http://127.0.0.1:8000/api"


@dataclass(frozen=True)
class ConfigValue:
    """A setting and the place that it came from: "flag", "environment", a file's name, or "default".

    name: of the variable or the flag.
    """

    text: str = field(repr=False)  # it may be a key
    origin: str
    name: str = field(default="", compare=False)

    @property
    def label(self) -> str:
        """The name and the place, for messages: `SYNTH_API_KEY (../.env)`."""
        return f"{self.name} ({self.origin})" if self.name else self.origin


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
        return is_loopback(self.backend.text)

    def require_api_key(self) -> ConfigValue:
        """Return the API key. Raises `NotAuthorised` with the way to get one."""
        if self.api_key is None:
            raise NotAuthorised(
                "no API key",
                expected="SYNTH_API_KEY in the environment, or in a .env here or in a folder above",
                fix="`synthctl up` starts a cluster here and writes one to .env; for another cluster, ask who runs it, "
                "and keep it with `synthctl setup`",
            )
        return self.api_key


def find_env_file(folder: Path, *, home: Path) -> Path:
    """Return the `.env` of the folder or of the nearest folder above it that has one; else the folder's own path.

    The search ends at the root of the git repository, else at `home`. Outside of both only the folder itself is
    searched, since a folder that others can write to must not decide where keys are sent.
    """
    above = [folder, *folder.parents]
    last = next((f for f in above if (f / ".git").exists()), home if home in above else folder)
    looked = above[: above.index(last) + 1]
    return next((f / ".env" for f in looked if (f / ".env").is_file()), folder / ".env")


def find_default_env_file() -> Path:
    """Return the nearest `.env`, as seen from the working directory; it need not be there."""
    here = Path.cwd()
    return Path(os.path.relpath(find_env_file(here, home=Path.home()), here))


def resolve(*, backend: str | None, env_files: Sequence[Path], optional: Collection[Path] = (Path(".env"),)) -> Config:
    """Read the configuration. The first file that has a key sets it.

    backend: the flag. optional: the files that need not be there. Raises `UsageProblem` for a file that is missing, and
    for an address that is not a URL.
    """
    for path in env_files:
        if path not in optional and not path.is_file():
            raise UsageProblem(f"there is no file {path}", expected="a file of KEY=value lines", where="--env-file")
    sources = [(ENVIRONMENT, user_environment()), *((str(path), read_env_file(path)) for path in env_files)]

    def find(*keys: str) -> ConfigValue | None:
        return next(
            (ConfigValue(values[key], origin, key) for origin, values in sources for key in keys if values.get(key)),
            None,
        )

    address = (
        ConfigValue(backend, "flag", "--backend") if backend else find("BACKEND_BASE_URL", "BACKEND_OVERRIDE")
    ) or ConfigValue(DEFAULT_BACKEND, "default")
    return Config(
        backend=dataclasses.replace(address, text=api_root(address)),
        api_key=find("SYNTH_API_KEY"),
        environment_key=find("ENVIRONMENT_API_KEY"),
        task_url=find("TASK_APP_URL"),
    )


def load(*, api_key: str | None = None, base_url: str | None = None) -> Config:
    """Read the configuration of a program: its arguments, then as `synthctl` does.

    Raises `UsageProblem` for an address that is not a URL.
    """
    file = find_default_env_file()
    config = resolve(backend=None, env_files=[file], optional=[file])
    if base_url is not None:
        address = ConfigValue(base_url, ARGUMENT, "base_url")
        config = dataclasses.replace(config, backend=dataclasses.replace(address, text=api_root(address)))
    if api_key is not None:
        config = dataclasses.replace(config, api_key=ConfigValue(api_key, ARGUMENT, "SYNTH_API_KEY"))
    return config


def user_environment() -> dict[str, str]:
    """Return the environment without the variables that `extend_environment` has added."""
    return {name: value for name, value in os.environ.items() if _added.get(name) != value}


def extend_environment(values: Mapping[str, str]) -> None:
    """Set the variables that the environment lacks, for the task app that is loaded here.

    They come from env files. Code that decides where a key is sent, or through which proxy, must not read them as
    settings of the user.
    """
    for name, value in values.items():
        if name not in os.environ:
            os.environ[name] = _added[name] = value


_added: dict[str, str] = {}


def without_password(url: str) -> str:
    """Return an address for a message, without the user's name and password in it."""
    return re.sub("//.*@", "//", url)


def api_root(address: ConfigValue) -> str:
    """Return the address with exactly one `/api` at its end."""
    url = address.text.strip().rstrip("/")
    if fault := base_url_fault(url):
        raise UsageProblem(
            f"{without_password(address.text)!r} is not the address of a backend: it {fault}",
            expected="a URL such as http://127.0.0.1:8000/api",
            where=address.label,
        )
    return url if url.endswith("/api") else f"{url}/api"
