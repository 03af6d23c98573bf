"""Settings that every service shares: read from the environment (`SYNTH_…`), typed, each with its meaning."""

from __future__ import annotations

import socket
from pathlib import Path

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict


class ServiceSettings(BaseSettings):
    """What a `synthd` process needs to join a cluster. A service adds its own fields in its `settings.py`."""

    model_config = SettingsConfigDict(env_prefix="SYNTH_", extra="ignore")

    nats_url: str = "nats://127.0.0.1:4222"
    """Where the bus is; several servers separated by commas."""

    nats_user: str | None = None
    """The service's own user on the bus; its permissions come from the event catalogue."""

    nats_password: SecretStr | None = None
    """That user's password."""

    blob_url: str = "file:.synth/blobs"
    """The blob store: `file:DIR`, or what obstore understands (`s3://bucket/prefix`, `gs://…`, `az://…`)."""

    cluster_secret: SecretStr = SecretStr("")
    """Signs rollout credentials and internal calls, and seals stored secrets. The same in every service."""

    pool: str = "default"
    """The worker pool: tasks are queued per pool, so that pools scale apart."""

    host: str = "127.0.0.1"
    """The address that the service's HTTP side (`/healthz`, `/metrics`, and its API if it has one) listens on."""

    port: int = 0
    """The port of the HTTP side; 0 takes a free one."""

    work_dir: Path = Path(".synth/work")
    """Scratch space of this process: everything in it can be lost."""

    models_dir: Path = Path(".synth/models")
    """Base models kept as local directories; the directory's name is the model's id."""

    model_hub: bool = False
    """Whether the weights of a base that is not in models_dir are downloaded from the model hub (huggingface_hub)."""

    log_level: str = "info"
    """debug, info, warning or error."""

    replica: str = Field(default_factory=lambda: socket.gethostname().lower().replace(".", "-").replace("_", "-"))
    """This process among the replicas of its service; letters, digits and hyphens."""

    grace_s: float = 20.0
    """After SIGTERM: seconds to hand work back before the process ends."""
