"""The steps of `synthctl setup`: read the settings, write them, register the key."""

from __future__ import annotations

import contextlib
import dataclasses
from dataclasses import dataclass
from pathlib import Path

import msgspec
import typer

from synth.cli.api.task_app import require_address
from synth.cli.confirmation import confirm, remember
from synth.client import Client
from synth.client.connections.config import DEFAULT_BACKEND, Config, ConfigValue, api_root
from synth.console.errors import Unreachable, UsageProblem
from synth.local.cluster.env_file import merge_env_file
from synth.runtime.environment.env_file import new_environment_key, read_env_file


@dataclass(frozen=True, kw_only=True)
class SetupAnswers:
    """The user's answers; None for a value to look up, to make or to leave out."""

    backend: str | None
    api_key: str | None
    environment_key: str | None
    task_url: str | None


class Registration(msgspec.Struct, kw_only=True):
    """The backend's answer. organisation: the key's; None if no request was sent, or it was refused."""

    url: str
    organisation: str | None = None
    problem: str = ""
    fix: str = ""


def prompt_for_missing(answers: SetupAnswers, settings: Config) -> SetupAnswers:
    """Prompt on the terminal for values that neither a flag nor a setting has. An empty answer leaves one out."""
    backend, api_key = answers.backend, answers.api_key
    if backend is None and settings.backend.origin == "default":
        backend = str(typer.prompt("Backend", default=DEFAULT_BACKEND, err=True))
    if api_key is None and settings.api_key is None:
        answer = typer.prompt(
            "SYNTH_API_KEY (hidden; empty for none)", default="", show_default=False, hide_input=True, err=True
        )
        api_key = str(answer).strip() or None
    return dataclasses.replace(answers, backend=backend, api_key=api_key)


def write_env_file(answers: SetupAnswers, settings: Config, target: Path) -> list[tuple[str, str]]:
    """Add the missing settings to the file. Returns each setting with its place.

    Raises `UsageProblem`, having written nothing, for a flag that contradicts the file: the file is the user's.
    """
    backend = None if answers.backend is None else api_root(ConfigValue(answers.backend, "flag"))
    named = {
        "SYNTH_API_KEY": (answers.api_key, settings.api_key),
        "ENVIRONMENT_API_KEY": (answers.environment_key, settings.environment_key),
        "BACKEND_BASE_URL": (
            backend,
            None if settings.backend.origin in ("default", "flag") else settings.backend,
        ),
        "TASK_APP_URL": (answers.task_url, settings.task_url),
    }
    present = read_env_file(target)
    new: dict[str, str] = {}
    rows: list[tuple[str, str]] = []
    for key, (given, known) in named.items():
        if given is not None and _same(key, present.get(key, given)) != given:
            raise UsageProblem(
                f"{target} has another {key}",
                expected="the same one, or none",
                fix=f"remove its line from {target}, or name another --env-file",
                where=f"--{_flag(key)}",
            )
        if given is not None and key not in present:
            new[key] = given
            rows.append((key, f"written to {target}"))
        elif given is not None:
            rows.append((key, str(target)))
        elif known is not None:
            rows.append((key, known.origin))
        elif key == "ENVIRONMENT_API_KEY":
            new[key] = new_environment_key()
            rows.append((key, f"made, written to {target}"))
        elif key == "BACKEND_BASE_URL":
            new[key] = DEFAULT_BACKEND
            rows.append((key, f"{DEFAULT_BACKEND}, written to {target}"))
        else:
            rows.append((key, "not set"))
    merge_env_file(target, new)
    return rows


def merge_answers(answers: SetupAnswers, settings: Config) -> Config:
    """Return the settings with the user's answers in place. Raises `UsageProblem` for an address that is none."""
    values = {
        "api_key": _given(answers.api_key, "SYNTH_API_KEY"),
        "environment_key": _given(answers.environment_key, "ENVIRONMENT_API_KEY"),
        "task_url": _given(answers.task_url, "TASK_APP_URL"),
    }
    if answers.backend is not None:
        backend = ConfigValue(answers.backend, "flag", "--backend")
        values["backend"] = dataclasses.replace(backend, text=api_root(backend))
    return dataclasses.replace(settings, **{name: value for name, value in values.items() if value is not None})


def confirm_origins(answers: SetupAnswers, merged: Config) -> None:
    """Confirm the user's addresses, and prompt for the addresses of the environment and the files.

    Raises `UnconfirmedOrigin`.
    """
    # No request is sent without an API key, unless a later command has one.
    if answers.backend is not None:
        remember("SYNTH_API_KEY", merged.backend.text)
    elif merged.api_key is not None:
        confirm(merged.api_key, merged.backend)
    if merged.task_url is None:
        return
    require_address(merged.task_url)
    if answers.task_url is not None:
        remember("ENVIRONMENT_API_KEY", merged.task_url.text)
    elif merged.api_key is not None:
        confirm(merged.environment_key or ConfigValue("", "to be made", "ENVIRONMENT_API_KEY"), merged.task_url)


def check_key(answers: SetupAnswers, merged: Config) -> None:
    """Check the key that the user gives with the backend, if it answers: a wrong key is not kept.

    Raises `NotAuthorised` for a key that the backend refuses.
    """
    if answers.api_key is None:
        return
    with contextlib.suppress(Unreachable), Client(merged, retry_budget=0) as client:
        client.account()


def register_environment_key(settings: Config) -> Registration:
    """Store the environment key with the backend. Raises `NotAuthorised` when it refuses the API key."""
    url = settings.backend.text
    if settings.api_key is None:
        fix = "`synthctl up` starts a cluster here and writes one; for another cluster, ask who runs it"
        return Registration(url=url, problem="there is no SYNTH_API_KEY yet", fix=fix)
    try:
        with Client(settings, retry_budget=0) as client:
            account = client.account()
            if settings.environment_key is not None:
                client.keys.add_environment_key(
                    settings.environment_key.text, settings.task_url and settings.task_url.text
                )
    except Unreachable as error:
        problem = error.problems[0]
        return Registration(
            url=url, problem=f"{problem.what}: {problem.where}", fix="run `synthctl setup` again when it answers"
        )
    return Registration(url=url, organisation=account.org)


def _given(text: str | None, name: str) -> ConfigValue | None:
    return None if text is None else ConfigValue(text, f"--{_flag(name)}", name)


def _same(key: str, text: str) -> str:
    """Return a setting normalised for comparison."""
    return api_root(ConfigValue(text, "file")) if key == "BACKEND_BASE_URL" else text


def _flag(key: str) -> str:
    return {"SYNTH_API_KEY": "api-key", "ENVIRONMENT_API_KEY": "environment-key", "BACKEND_BASE_URL": "backend"}.get(
        key, "task-url"
    )
