"""What a service refuses to start with, and what its garbage collector leaves alone."""

from __future__ import annotations

import gc
from typing import Any, cast

import pytest
from pydantic import SecretStr

from synth.errors import UserError
from synth.runtime.settings import ServiceSettings
from synth.service import Service, serve


async def test_a_service_does_not_start_with_a_secret_that_could_be_guessed(tmp_path):
    async def setup(service: Service) -> None:
        raise AssertionError("it started")

    for secret in ("", "fifteen letters"):
        # Nothing listens there: it must end before it dials the bus.
        settings = ServiceSettings(cluster_secret=SecretStr(secret), work_dir=tmp_path, nats_url="nats://127.0.0.1:9")
        with pytest.raises(UserError, match=f"SYNTH_CLUSTER_SECRET: the cluster secret has {len(secret)} characters"):
            await serve("verifier", settings, setup)


async def test_the_garbage_collector_does_not_go_through_what_a_running_service_is_made_of(tmp_path):
    settings = ServiceSettings(work_dir=tmp_path)
    none = cast(Any, None)
    service = Service("verifier", settings, secrets=none, bus=none, blobs=none, off_loop=none, port=0)
    service.stop.set()
    gc.unfreeze()
    try:
        await service.supervise()
        # Those that tell generations apart: less is left to it than it leaves alone.
        assert len(gc.get_objects()) < gc.get_freeze_count()
    finally:
        gc.unfreeze()
