"""The mount of the OpenAI API at `{root}/v1`, the SDK's `base_url`, and below our paths that no other API uses."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import FastAPI
from starlette.routing import BaseRoute, Route

from synth.gateway.api.native import inference
from synth.gateway.api.openai import files, graders, jobs, models


def include_openai(app: FastAPI) -> None:
    """Add the routes; the API document shows the routes below `/v1`.

    `app.state.openai_paths` has their paths, except paths with an item's id.
    """
    paths = set(_paths(inference.router.routes))
    for part in (files, graders, jobs, models):
        app.include_router(part.router, prefix="/v1")
        paths |= {f"/v1{path}" for path in _paths(part.router.routes)}
    app.state.openai_paths = sorted(path for path in paths if path.startswith("/v1/"))
    app.include_router(jobs.router, prefix="/api/v1", include_in_schema=False)
    for prefix in ("/api/v1", "/api/inference/v1"):
        app.include_router(models.router, prefix=prefix, include_in_schema=False)


def _paths(routes: Sequence[BaseRoute]) -> list[str]:
    paths = [route.path for route in routes if isinstance(route, Route)]
    return [path for path in paths if "{" not in path and not path.endswith("/")]
