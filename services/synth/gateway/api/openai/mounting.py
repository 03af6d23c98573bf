"""Mounts the OpenAI API at `{root}/v1`, the SDK's `base_url`, and below our paths where no other API answers."""

from __future__ import annotations

from fastapi import FastAPI

from synth.gateway.api.openai import files, graders, jobs, models


def include_openai(app: FastAPI) -> None:
    """Add the routes; the document shows those below `/v1`."""
    for part in (files, graders, jobs, models):
        app.include_router(part.router, prefix="/v1")
    app.include_router(jobs.router, prefix="/api/v1", include_in_schema=False)
    for prefix in ("/api/v1", "/api/inference/v1"):
        app.include_router(models.router, prefix=prefix, include_in_schema=False)
