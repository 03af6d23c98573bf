"""Parameters that several routes take."""

from __future__ import annotations

from typing import Annotated

from fastapi import Header, Query

from synth.api.limits import MAX_IDEMPOTENCY_KEY, MAX_PAGE

PageLimit = Annotated[int, Query(ge=1, le=MAX_PAGE)]
IdempotencyKey = Annotated[str | None, Header(min_length=1, max_length=MAX_IDEMPOTENCY_KEY)]
