"""The module that a container of Modal imports, with the function that returns the app. It needs no SDK of Modal's."""

from __future__ import annotations

import os

from starlette.applications import Starlette

from synth.local.task_apps.loading import load_task_app

#: The variable that names the app, as `load_task_app` takes it, from the folder that the container begins in.
PLACE = "SYNTH_TASK_APP"


def task_app() -> Starlette:
    """Return the app that this container serves."""
    return load_task_app(os.environ[PLACE]).asgi()
