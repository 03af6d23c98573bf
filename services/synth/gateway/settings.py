"""What the gateway is configured with."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, SecretStr

from synth.graders.python.settings import PythonGraderSettings
from synth.runtime.settings import ServiceSettings


class GatewaySettings(ServiceSettings, PythonGraderSettings):
    """The gateway's own settings, beside the ones that every service has."""

    read_model_path: Path = Path(".synth/gateway.db")
    """The read model, SQLite. Each gateway process has its own; deleting it costs a replay of the log."""

    bootstrap_api_key: SecretStr | None = None
    """An API key that must exist: it is given an organisation at the first start."""

    bootstrap_environment_key: SecretStr | None = None
    """A task-app key that the organisation of `bootstrap_api_key` has from the start."""

    url_key_s: float = 86_400.0
    """How long a key in a URL (`synthctl keys create --url`) lives when its maker does not say."""

    max_url_key_s: float = 30 * 86_400.0
    """How long a key in a URL may live at most: an address is copied, kept in histories and logged by others."""

    max_key_grace_s: int = 30 * 86_400
    """For how long a rotated key may still open beside the one that replaces it."""

    max_upload_bytes: int = 64 << 30
    """The largest file that may be uploaded."""

    max_request_bytes: int = 32 << 20
    """The largest inference request (images travel inside it); the inference service has a setting of the same name."""

    max_json_bytes: int = 8 << 20
    """The largest body of any other request."""

    max_graded_characters: int = Field(default=200_000, ge=1)
    """Of the texts of one comparison of a grader: what comparing costs grows with the product of their lengths."""

    inference_timeout_s: float = 3900.0
    """How long an inference replica may be silent before a request to it is given up: longer than a reply may take
    there (`SYNTH_COMPLETION_S`), since one that is not streamed is silent until it is whole."""

    log_read_s: float = 60.0
    """How long finding a page of a job's events in the log may take, where they are asked for newest first: those of a
    job with half a million rollouts lie far apart."""

    trace_days: float | None = Field(default=None, gt=0)
    """For how many days a trace is kept once its job has ended; without it, as long as its job."""

    traces_per_job: int | None = Field(default=None, ge=0)
    """How many traces of a job are kept once it has ended, the newest ones; without it, all."""

    traces_per_organisation: int | None = Field(default=None, ge=0)
    """How many traces of an organisation are kept, the newest ones; those of its running jobs count, and stay. Without
    it, all."""

    judge_provider: str | None = None
    """Who judges at `/judge/v1/score` where a request names no provider, and who serves the models that the graders of
    `/v1/fine_tuning/jobs` ask: one of `SYNTH_JUDGE_PROVIDERS`, or `synth`."""

    judge_model: str | None = None
    """With which model, where a request names none."""

    heartbeat_after_s: float = 4.0
    """A live job that is silent for so long gets a `watch.heartbeat`."""

    waiting_after_s: float = 60.0
    """A job that nobody took for so long gets a `queue.waiting` that says what is lacking, and again each time."""

    stream_buffer: int = 2000
    """Events queued for one watcher; a slower one is sent back to the log."""

    ping_s: float = Field(default=15.0, gt=0, le=15)
    """Silence on an event stream after which a comment is sent, so that proxies keep it open. 15 at most: a watcher
    takes 45 s of silence for a connection that is dead."""
