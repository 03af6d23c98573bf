"""The settings of the gateway."""

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
    """The gateway's own settings, in addition to the settings of every service."""

    read_model_path: Path = Path(".synth/gateway.db")
    """The read model, SQLite. Each gateway process has its own; deleting it costs a replay of the log."""

    read_model_check_s: float = Field(default=300.0, gt=0)
    """The interval in seconds of the check of the read model's file for damage. Damage is detected by this check, or by
    the next request that reads a damaged part; the log is then projected again."""

    read_model_snapshot_events: int = Field(default=100_000, ge=0)
    """After how many events the read model's file is copied, into the same folder, so that after damage only the later
    events are projected again. The copy takes as much of the disk as the file. 0: no copy is made."""

    ledger_check_s: float = Field(default=6 * 3600.0, gt=0)
    """The interval in seconds of the comparison of the bus's log and secrets with the ledger, a file beside the read
    model's (`.ledger`), which also runs at each start. A comparison reads the whole log. If the bus has lost messages,
    all writing stops."""

    disk_reserve_bytes: int = Field(default=1 << 30, ge=0)
    """New jobs and files are refused if the disk of the blob store, or the disk of `SYNTH_WORK_DIR`, has no more free
    bytes than this reserve, which is for jobs that run. A remote blob store has no such limit."""

    log_reserve: float = Field(default=0.1, ge=0, lt=1)
    """The share of `SYNTH_LOG_MAX_BYTES` that is reserved for jobs that run: new jobs and files are refused before the
    log reaches it."""

    bootstrap_api_key: SecretStr | None = None
    """An API key that must exist: it gets an organisation at the first start. A cluster that has run before must have
    its records."""

    bootstrap_environment_key: SecretStr | None = None
    """A task-app key that the organisation of `bootstrap_api_key` has from the start."""

    bootstrap_environment_origins: Annotated[tuple[str, ...], NoDecode] = ()
    """The origins at which that key is tried for the jobs of `bootstrap_api_key`:
    `https://app.example.com,http://10.1.2.3`. An origin without a port matches all of its ports. If unset, the key is
    offered to the first task app that answers."""

    environment_key_offer_s: float = Field(default=3600.0, gt=0)
    """For how many seconds a task-app key without an address is offered to task apps that are named with the API key
    that stored it, until one answers. A longer time helps a client that stores its key long before it names the app,
    but also a thief of the API key in that time."""

    environment_chat_s: float = Field(default=30 * 86_400.0, gt=0)
    """For how many seconds a task-app key opens chat completions after it was stored, or stored again."""

    environment_chat_characters: int = Field(default=16, ge=1)
    """The shortest task-app key that opens chat completions: a shorter one can be guessed."""

    url_key_s: float = 86_400.0
    """The default lifetime in seconds of a key in a URL (`synthctl keys create --url`)."""

    max_url_key_s: float = 30 * 86_400.0
    """The longest lifetime in seconds of a key in a URL: URLs are copied, kept in histories and logged by others."""

    max_key_grace_s: int = 30 * 86_400
    """For how many seconds at most a rotated key may stay valid beside its replacement."""

    max_upload_bytes: int = 64 << 30
    """The largest file that may be uploaded."""

    max_request_bytes: int = 32 << 20
    """The largest inference request (images travel inside it); the inference service has a setting of the same name."""

    max_json_bytes: int = 8 << 20
    """The largest body of any other request."""

    config_inline_bytes: int = Field(default=16 << 10, ge=0)
    """The longest configuration of a job, in bytes, that is written into the event log; a longer one is stored as a
    blob of the job."""

    max_json_values: int = Field(default=100_000, ge=1)
    """The most JSON values in such a body: decoding this many takes about 20 ms, in which no other request runs. Eight
    escapes in a text count as a value, and a long number as several."""

    list_conditions: int = Field(default=16, ge=1)
    """The most tags, pairs of metadata and names of files or models in one filter of a list of jobs."""

    list_timeout_s: float = Field(default=5.0, gt=0)
    """How long a filtered list of jobs may take in the read model; beyond it the request is refused."""

    max_graded_characters: int = Field(default=200_000, ge=1)
    """The most characters in the texts of one comparison of a grader: the cost of comparing grows with the product of
    their lengths."""

    inference_timeout_s: float = 3900.0
    """How long an inference replica may be silent before a request to it is given up: longer than a reply may take
    there (`SYNTH_COMPLETION_S`), since a reply that is not streamed is silent until it is complete."""

    log_read_s: float = 60.0
    """How long finding a page of a job's events in the log may take, if the newest events are requested first: the
    listed events of a job with half a million rollouts are far apart."""

    trace_days: float | None = Field(default=None, gt=0)
    """For how many days a trace is kept after its job has ended; if unset, as long as its job."""

    failed_checkpoint_days: float | None = Field(default=None, gt=0)
    """For how many days a failed job keeps its checkpoints, from which `synthctl jobs resume` continues; if unset, as
    long as the job exists."""

    traces_per_job: int | None = Field(default=None, ge=0)
    """How many of a job's newest traces are kept after it has ended; if unset, all."""

    traces_per_organisation: int | None = Field(default=None, ge=0)
    """How many of an organisation's newest traces are kept; the traces of its running jobs count, and are all kept. If
    unset, all."""

    judge_provider: str | None = None
    """The provider of the judge at `/judge/v1/score` if a request names none, and of the models that the graders of
    `/v1/fine_tuning/jobs` call: one of `SYNTH_JUDGE_PROVIDERS`, or `synth`."""

    judge_model: str | None = None
    """The judge's model at `/judge/v1/score` if a request names none."""

    heartbeat_after_s: float = 4.0
    """A live job that is silent for this many seconds gets a `watch.heartbeat`, if a client of this gateway follows
    its events."""

    waiting_after_s: float = 60.0
    """A job that no service took for this many seconds gets a `queue.waiting` with the service that it waits for, and
    again each time that it has waited twice as long. A watched job gets it at once, and when it moves up: at each
    halving of its place, and at each of the first ten places."""

    projection_wait_s: float = 5.0
    """How long a request waits for a gateway that still projects the log, before its response is a 503."""

    stream_buffer_bytes: int = Field(default=64 << 20, ge=0)
    """Bytes of events that are kept in memory for all watchers: the newest events of watched jobs, and recently read
    past events. A watcher that needs a dropped event reads the log again."""

    stream_reads_waiting: int = Field(default=500, ge=1)
    """How many reads of the log for event streams may wait for other reads, a few seconds' worth: at this number a
    further stream is refused at once, with a 503 and the time to retry. Watchers of one job share their reads."""

    ping_s: float = Field(default=15.0, gt=0, le=15)
    """Seconds of silence on an event stream after which a comment is sent, so that proxies keep it open. 15 at most: a
    watcher treats a connection as dead after 45 s of silence."""

    @field_validator("bootstrap_environment_origins", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value

    @field_validator("bootstrap_environment_origins")
    @classmethod
    def _are_origins(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for n, origin in enumerate(value, 1):
            if origin_of(origin) != origin:
                # The message leaves the URL out, because it may contain a password.
                raise ValueError(f"entry {n} is not an origin, such as https://app.example.com or http://10.1.2.3:8001")
        return value
