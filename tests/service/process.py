"""A service as the process that it is: `synthd NAME` against the session's nats-server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from synth.bus.server.embedded import free_port
from synth.runtime.settings import ServiceSettings

#: Seconds that a service may take to end: a trainer hands its task back, and ends its learner's process.
_END_S = {"trainer": 45}


def environment(settings: ServiceSettings, **extra: str) -> dict[str, str]:
    """The environment in which a `synthd` process gets these settings."""
    secrets = {"SYNTH_NATS_PASSWORD": settings.nats_password, "SYNTH_NATS_SEED": settings.nats_seed}
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("SYNTH_")},
        "SYNTH_NATS_URL": settings.nats_url,
        "SYNTH_NATS_USER": settings.nats_user or "",
        **{name: secret.get_secret_value() for name, secret in secrets.items() if secret is not None},
        "SYNTH_BLOB_URL": settings.blob_url,
        "SYNTH_MODELS_DIR": str(settings.models_dir),
        "SYNTH_WORK_DIR": str(settings.work_dir),
        "SYNTH_CLUSTER_SECRET": settings.cluster_secret.get_secret_value(),
        "SYNTH_REPLICA": settings.replica,
        **extra,
    }


@contextmanager
def running(
    name: str,
    settings: ServiceSettings,
    log: Path,
    *,
    port: int = 0,
    ends: str = "0",
    probe: str = "/healthz",
    **extra: str,
) -> Iterator[subprocess.Popen[bytes]]:
    """A healthy service; ended with SIGTERM, which it must obey within seconds. port: a free one when it is 0.

    ends: the code that it must end with, by itself or when it is told to. probe: the path that answers 200 once it is
    up.
    """
    port = port or free_port()
    env = environment(settings, SYNTH_PORT=str(port), **extra)
    with log.open("wb") as out:
        process = subprocess.Popen([sys.executable, "-m", "synth.synthd", name], env=env, stdout=out, stderr=out)
    try:
        _wait_healthy(process, port, log, probe)
        yield process
        process.send_signal(signal.SIGTERM)
        code = str(process.wait(_END_S.get(name, 15)))
        assert code == ends, f"{name} ended with {code}, and said:\n{log.read_text()}"
    finally:
        process.kill()
        process.wait(10)


def _wait_healthy(process: subprocess.Popen[bytes], port: int, log: Path, probe: str) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{probe}", timeout=1):
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.05)
    raise AssertionError(f"not healthy: {log.read_text()}")
