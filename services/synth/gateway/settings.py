"""What the gateway is configured with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import NoDecode

from synth.gateway.audit.settings import AuditSettings
from synth.gateway.limits.settings import LimitSettings
from synth.gateway.subscribers.settings import SubscriberSettings
from synth.graders.python.settings import PythonPoolSettings
from synth.outbound.http_guard import origin_of
from synth.runtime.settings import ServiceSettings


class GatewaySettings(ServiceSettings, PythonPoolSettings, LimitSettings, SubscriberSettings, AuditSettings):
    """The gateway's own settings, beside the ones that every service has."""

    read_model_path: Path = Path(".synth/gateway.db")
    """The read model, SQLite. Each gateway process has its own; deleting it costs a replay of the log."""

    read_model_check_s: float = Field(default=300.0, gt=0)
    """Every how many seconds the read model's file is compared with what was written into it. A damaged one is noticed
    at the next answer that meets the damage, or then; the log is projected again."""

    read_model_snapshot_events: int = Field(default=100_000, ge=0)
    """After how many events the read model's file is copied beside itself, so that after damage only what came since is
    projected again. The copy takes as much of the disk as the file. 0: no copy is made."""

    ledger_check_s: float = Field(default=6 * 3600.0, gt=0)
    """Every how many seconds all that the bus holds of the log and of the secrets is compared with the ledger, a file
    beside the read model's (`.ledger`): also at each start. A comparison reads the whole log. What the bus has lost
    stops all writing."""

    disk_reserve_bytes: int = Field(default=1 << 30, ge=0)
    """New jobs and files are refused when the disk of the blob store, or that of `SYNTH_WORK_DIR`, has no more than
    this left: it is for jobs that run. A remote blob store has no such limit."""

    log_reserve: float = Field(default=0.1, ge=0, lt=1)
    """The share of `SYNTH_LOG_MAX_BYTES` that is for jobs that run: new jobs and files are refused before that is
    begun."""

    bootstrap_api_key: SecretStr | None = None
    """An API key that must exist: it is given an organisation at the first start. A cluster that has run before must
    have its records."""

    bootstrap_environment_key: SecretStr | None = None
    """A task-app key that the organisation of `bootstrap_api_key` has from the start."""

    bootstrap_environment_origins: Annotated[tuple[str, ...], NoDecode] = ()
    """Where that key is tried for the jobs of `bootstrap_api_key`: `https://app.example.com,http://10.1.2.3`. One
    without a port stands for all its ports. Without any, it is offered to the first task app that answers."""

    environment_key_offer_s: float = Field(default=3600.0, gt=0)
    """For how many seconds a task-app key that was stored without an address is offered to the first task app that
    answers of those which the API key that stored it names. Longer helps a client that stores its key long before it
    names the app, and whoever steals the API key in that time."""

    environment_chat_s: float = Field(default=30 * 86_400.0, gt=0)
    """For how many seconds a task-app key opens chat completions after it was stored, or stored again."""

    environment_chat_characters: int = Field(default=16, ge=1)
    """The shortest task-app key that opens chat completions: a shorter one can be guessed."""

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

    config_inline_bytes: int = Field(default=16 << 10, ge=0)
    """The longest configuration of a job that is written into the event log; a longer one is a blob of the job."""

    max_json_values: int = Field(default=100_000, ge=1)
    """The most JSON values in such a body: to decode as many takes some 20 ms, in which no other request goes on. Eight
    escapes in a text count as a value, and a long number as several."""

    list_conditions: int = Field(default=16, ge=1)
    """The most tags, pairs of metadata and names of files or models in one filter of a list of jobs."""

    list_timeout_s: float = Field(default=5.0, gt=0)
    """How long a filtered list of jobs may take in the read model; beyond it the request is refused."""

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

    failed_checkpoint_days: float | None = Field(default=None, gt=0)
    """For how many days a job that failed keeps its checkpoints, from which `synthctl jobs resume` goes on; without it,
    as long as its job."""

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
    """A live job that is silent for so long gets a `watch.heartbeat`, if a client of this gateway follows
    its events."""

    waiting_after_s: float = 60.0
    """A job that nobody took for so long gets a `queue.waiting` that says what is lacking, and again each time that
    it has waited twice as long. One that is watched gets it at once, and as it moves up: at each halving of its place,
    and at each of the first ten places."""

    projection_wait_s: float = 5.0
    """How long a request waits for a gateway that still projects the log, before it is answered with a 503."""

    stream_buffer_bytes: int = Field(default=64 << 20, ge=0)
    """Bytes of events that are kept in memory for all watchers: the newest ones of watched jobs, and what was just read
    of their past. A watcher that needs what was dropped reads the log again."""

    stream_reads_waiting: int = Field(default=500, ge=1)
    """Reads of the log that may wait for others on behalf of event streams, a few seconds of them: meanwhile one more
    stream is refused at once, with a 503 that says when to come again. Watchers of one job share their reads."""

    ping_s: float = Field(default=15.0, gt=0, le=15)
    """Silence on an event stream after which a comment is sent, so that proxies keep it open. 15 at most: a watcher
    takes 45 s of silence for a connection that is dead."""

    @field_validator("bootstrap_environment_origins", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value

    @field_validator("bootstrap_environment_origins")
    @classmethod
    def _are_origins(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for n, origin in enumerate(value, 1):
            if origin_of(origin) != origin:
                # A URL may hold a password.
                raise ValueError(f"entry {n} is not an origin, such as https://app.example.com or http://10.1.2.3:8001")
        return value
