"""The mount of the Synth API, whose clients put `/api`, `/api/v1` or a doubled `/api` before the same path."""

from __future__ import annotations

from fastapi import APIRouter, FastAPI

PREFIXES = ("/api", "/api/v1", "/api/api")


def include_under_every_prefix(app: FastAPI, router: APIRouter) -> None:
    """Serve a router's routes below each prefix; the API document shows only the first."""
    for prefix in PREFIXES:
        app.include_router(router, prefix=prefix, include_in_schema=prefix == PREFIXES[0])
