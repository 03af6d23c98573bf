"""Gives a task app, and the backend, the key that opens the app."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from synth.client import Client
from synth.client.connections.config import Config, extend_environment
from synth.console.errors import CliError
from synth.local.cluster.env_file import merge_env_file
from synth.runtime.environment.env_file import new_environment_key, read_env_file
from synth.taskapp.auth import configured_keys


def set_environment(env_files: Sequence[Path]) -> list[str]:
    """Set the variables of the files that the environment lacks; make an environment key if there is none.

    Returns a line for each change, for the user to read. The first file that has a key sets it.
    """
    read_environment(env_files)
    if configured_keys():
        return []
    made = {"ENVIRONMENT_API_KEY": new_environment_key()}
    extend_environment(made)
    merge_env_file(env_files[0], made)
    return [f"made an ENVIRONMENT_API_KEY and wrote it to {env_files[0]}"]


def read_environment(env_files: Sequence[Path]) -> None:
    """Set the variables of the files that the environment lacks, for the app that is served."""
    for path in env_files:
        extend_environment(read_env_file(path))


def store_key(settings: Config, url: str) -> str | None:
    """Let the backend use this process's key at its address; returns what to tell the user. Needs an API key."""
    if settings.api_key is None:
        return None
    try:
        with Client(settings, retry_budget=0) as client:
            client.keys.add_environment_key(configured_keys()[0], url)
    except CliError as error:
        return f"the backend was not given the key ({error.problems[0].what}); `synthctl submit` sends it again"
    return f"the key is known to the backend at {settings.backend.text}"
