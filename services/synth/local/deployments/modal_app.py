"""A task app at Modal, through Modal's own SDK: its image and function, its name there, and its end.

The user installs the SDK. Secrets reach Modal as a `modal.Secret` of the app alone; no image contains one, and no
file that is written here does.
"""

from __future__ import annotations

import math
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import Any

from synth.console.errors import CliError, NotAuthorised, Unreachable, UsageProblem
from synth.local.deployments import modal_entry
from synth.local.deployments.image import ImageFolder
from synth.local.deployments.state import AtModal, Deployment, DeploymentState
from synth.taskapp.auth import KEY_VARIABLES

#: Seconds that a call may take: the longest that Modal allows, so that the job's own deadline ends a rollout.
CALL_S = 86_400
_APP, _SDK = "/app", "/sdk"
#: Settings of this program and of Modal's: no app reads them, and they open more than the app.
_NOT_THE_APPS = ("SYNTH_", "MODAL_")


def choose_secrets(named: Iterable[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the app's secrets: the variables that the env files name, and the keys that open the app."""
    names = {name for name in named if not name.startswith(_NOT_THE_APPS)} | {*KEY_VARIABLES}
    return {name: environment[name] for name in sorted(names) if environment.get(name)}


def deploy(
    files: Deployment,
    written: ImageFolder,
    *,
    name: str,
    base: str | None,
    secrets: Mapping[str, str],
    start_s: float,
    max_inputs: int,
    show: Callable[[str], None],
) -> DeploymentState:
    """Deploy the app as Modal's app of this name, in place of an earlier deployment of it from here.

    base: the image to begin with; Modal's own with this Python if None. start_s: seconds that a container may take to
    start. max_inputs: calls that one container answers at once. Raises `CliError`; an earlier deployment then stays.
    """
    modal = load_sdk()
    with files.locked(), _told(modal, name):
        before = files.read()
        environment = modal.config.config.get("environment") or ""
        _refuse_another(files, before, name, environment)
        show("looking up the name at Modal")
        client = modal.Client.from_env()
        there = _find(modal, name, environment, client)
        if there is not None and (before is None or before.modal is None or before.modal.id != there.app_id):
            what = f"Modal has an app {name!r} already, which was not deployed from here"
            fix = f"choose another name with --tag, or end that one: modal app stop {name}"
            raise UsageProblem(what, expected="a name that no app has", fix=fix, where="--tag")
        app, function = _build_app(
            modal, written, name=name, base=base, secrets=secrets, start_s=start_s, max_inputs=max_inputs
        )
        show("Modal builds the image, which may take minutes the first time")
        app.deploy(name=name, environment_name=environment or None, client=client)
        at = AtModal(name=name, id=app.app_id, environment=environment)
        url = function.get_web_url() or ""
        state = DeploymentState(
            id=files.id, modal=at, app=written.place, folder=str(Path.cwd()), url=url, health="deployed"
        )
        files.write(state)
        return state


def stop(files: Deployment, state: DeploymentState) -> bool:
    """End the app at Modal; return whether it was there. An app that took its name since is left alone."""
    modal = load_sdk()
    assert state.modal is not None
    with files.locked(), _told(modal, state.modal.name):
        client = modal.Client.from_env()
        there = _find(modal, state.modal.name, state.modal.environment, client)
        ran = there is not None and there.app_id == state.modal.id
        if there is not None and ran:
            there.stop(client=client)
        state.health = "stopped"
        files.write(state)
        return ran


def load_sdk() -> ModuleType:
    """Return Modal's SDK. Raises `UsageProblem` if it is not installed, or its configuration cannot be read."""
    try:
        # It prints to stdout when its configuration cannot be read, and stdout is for what scripts take.
        with redirect_stdout(StringIO()):
            import modal
            import modal.config
            import modal.exception
    except ModuleNotFoundError as error:
        if error.name != "modal":
            raise
        fix = "pip install modal"
        raise UsageProblem("Modal's SDK is not installed here", expected="the package modal", fix=fix) from error
    except Exception as error:
        raise UsageProblem(_words(error), fix="mend or remove it: ~/.modal.toml, or MODAL_CONFIG_PATH") from error
    return modal


def _build_app(
    modal: Any,
    written: ImageFolder,
    *,
    name: str,
    base: str | None,
    secrets: Mapping[str, str],
    start_s: float,
    max_inputs: int,
) -> tuple[Any, Any]:
    """Return the app and its one function, not yet at Modal."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    image = modal.Image.from_registry(base) if base else modal.Image.debian_slim(python_version=python)
    image = image.env({"PYTHONUNBUFFERED": "1", modal_entry.PLACE: written.place})
    if written.with_sdk:
        image = image.add_local_dir(written.folder / "sdk", _SDK, copy=True)
        image = image.run_commands(f"python -m pip install {shlex.quote(f'{_SDK}[taskapp]')}")
    if written.requirements:
        image = image.pip_install_from_requirements(str(written.folder / "requirements.txt"))
    # The app comes last and as a mount, so that a changed line of it rebuilds nothing.
    image = image.workdir(_APP).add_local_dir(written.folder / "app", _APP)
    app = modal.App(name)
    # The container's image has this SDK, so it needs no file of this machine's installation.
    function = app.function(
        image=image,
        secrets=[modal.Secret.from_dict(dict(secrets))],
        timeout=CALL_S,
        startup_timeout=math.ceil(start_s),
        include_source=False,
    )
    return app, function(modal.concurrent(max_inputs=max_inputs)(modal.asgi_app()(modal_entry.task_app)))


def _refuse_another(files: Deployment, before: DeploymentState | None, name: str, environment: str) -> None:
    if before is None or before.health == "stopped":
        return
    if before.modal is None and (before.supervised or before.running):
        what = f"{files.id} is deployed as a process of this machine, at {before.url}"
    elif before.modal is not None and (before.modal.name, before.modal.environment) != (name, environment):
        there = before.modal.environment or "the default"
        what = f"{files.id} is deployed to Modal as {before.modal.name!r}, in {there} environment"
    else:
        return
    raise CliError(what, fix=f"synthctl deploy stop {files.id}", where=str(files.folder))


def _find(modal: Any, name: str, environment: str, client: Any) -> Any | None:
    try:
        return modal.App.lookup(name, environment_name=environment or None, client=client)
    except modal.exception.NotFoundError:
        return None


@contextmanager
def _told(modal: Any, name: str) -> Iterator[None]:
    """Raise what Modal's SDK raises as a `CliError`."""
    wrong = modal.exception
    try:
        yield
    except (wrong.AuthError, wrong.PermissionDeniedError) as error:
        fix = "run `modal token new`, or set MODAL_TOKEN_ID and MODAL_TOKEN_SECRET"
        raise NotAuthorised(f"Modal refuses: {_words(error)}", expected="a token of Modal's", fix=fix) from error
    except wrong.ImageBuildError as error:
        what = f"Modal could not build the image: {_words(error)}"
        raise CliError(what, fix=f"its log: modal image logs {error.image_id}", where=name) from error
    except (wrong.ConnectionError, wrong.ServiceError, OSError, TimeoutError) as error:
        server = os.environ.get("MODAL_SERVER_URL") or "api.modal.com"
        what = f"Modal does not answer: {_words(error)}"
        raise Unreachable(what, fix="try again, or see status.modal.com", where=server) from error
    except wrong.InvalidError as error:
        raise UsageProblem(f"Modal refuses: {_words(error)}", where=name) from error
    except wrong.Error as error:
        raise CliError(f"Modal refuses: {_words(error)}", where=name) from error


def _words(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
