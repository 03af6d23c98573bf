"""Settings that every service shares: read from the environment (`SYNTH_…`), typed, each with its meaning."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field, SecretStr

from synth.errors import UserError
from synth.http_server.settings import HttpSettings
from synth.runtime.off_loop import WorkerSettings
from synth.service_secrets import CLUSTER_SECRET, CLUSTER_SECRET_EARLIER, NEEDS, SERVICE_SECRETS, ServiceSecrets

#: A file that is not set: an empty variable, as Compose passes it on, names none.
OptionalFile = Annotated[Path | None, BeforeValidator(lambda value: value or None)]


class ServiceSettings(HttpSettings, WorkerSettings):
    """What a `synthd` process needs to join a cluster. A service adds its own fields in its `settings.py`."""

    nats_url: str = "nats://127.0.0.1:4222"
    """The address of the bus; several servers separated by commas. With `tls://` the connection is encrypted, and the
    server's certificate must be signed by a CA that this machine trusts, or by `SYNTH_NATS_CA`."""

    nats_user: str | None = None
    """The service's own user on the bus; its permissions come from the event catalogue."""

    nats_password: SecretStr | None = None
    """That user's password."""

    nats_seed: SecretStr | None = None
    """The seed of that user's nkey (`SU…`), in place of a password: it signs the server's challenge, and is never sent.
    `synthd bus nkey USER` makes one."""

    nats_ca: OptionalFile = None
    """The file of the CA (PEM) that signed the bus's certificate: this one alone is trusted, and the bus is dialled
    over TLS or not at all."""

    nats_cert: OptionalFile = None
    """The file of this service's own certificate (PEM), for a bus that requires one (mutual TLS); the bus is dialled
    over TLS or not at all."""

    nats_key: OptionalFile = None
    """The file of that certificate's private key (PEM), which no passphrase seals."""

    loop_tick_s: float = Field(default=0.1, gt=0)
    """Seconds between two measurements of how long the event loop stood still (`synth_loop_gap_seconds`). A gap is
    measured shorter by up to this; a shorter time costs CPU time."""

    blob_url: str = "file:.synth/blobs"
    """The blob store: `file:DIR`, or what obstore understands (`s3://bucket/prefix`, `gs://…`, `az://…`)."""

    cluster_secret: SecretStr = SecretStr("")
    """The secret from which the secrets of every service are derived. They sign rollout credentials and internal calls,
    and seal stored secrets. The same for every service; a service that has `SYNTH_SECRETS` must not be given it."""

    cluster_secret_earlier: SecretStr = SecretStr("")
    """Cluster secrets from before a rotation, separated by commas. Signatures and seals made with them are
    accepted, and no new ones are made."""

    secrets: SecretStr = SecretStr("")
    """The secrets of this service alone, in place of `SYNTH_CLUSTER_SECRET`: the output of `synthd secrets SERVICE`."""

    call_token_s: float = Field(default=300.0, ge=10)
    """Seconds that the token of one HTTP call between services is valid. The clocks of their machines may differ by as
    much."""

    passed_environment: str = ""
    """Names, separated by commas, of environment variables that the child processes of a service have, beside variables
    of libraries and of the machine (docs/security.md#child-processes), such as the ones that a plugin reads."""

    pool: str = "default"
    """The worker pool: tasks are queued per pool, so that pools scale apart."""

    task_failures: int = Field(default=6, ge=1)
    """How often in a row a task (training, collecting, serving) may fail; then its job is ended, and it is not begun
    again. A worker that dies with it alone counts; one that dies with several tasks makes each a suspect; one that
    hands it back in good order does not count; a task that has advanced (a checkpoint, a rollout, a newer version that
    serves) begins at 0."""

    task_suspicions: int = Field(default=2, ge=1)
    """How often in a row a task may be lost with a process that has room for several; then a worker hands its other
    tasks back and runs this one alone, so that its death is this task's failure, and not its neighbours'."""

    task_alone_s: float = Field(default=60.0, gt=0)
    """Seconds that a suspected task runs alone before it shares its process again; one that advances shares at once."""

    job_log_bytes: int = Field(default=262_144, ge=0)
    """Bytes that are stored of a process's log lines about one job: the last ones, without secrets. The job's owner
    reads them with `synthctl logs JOB`. 0 stores none."""

    job_log_every_s: float = Field(default=10.0, gt=0)
    """Seconds between two writes of that log while the job runs."""

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

    def secrets_of(self, service: str) -> ServiceSecrets:
        """Return the secrets of this service, from its settings.

        Raises `UserError` if a needed secret is missing or could be guessed, or if the settings give it too many.
        """
        # The value may come from a file, which often ends with a newline.
        given, own = self.cluster_secret.get_secret_value().strip(), self.secrets.get_secret_value().strip()
        parts = self.cluster_secret_earlier.get_secret_value().split(",")
        earlier = [secret for part in parts if (secret := part.strip())]
        if own and (given or earlier):
            raise UserError(
                f"the cluster's secret is set beside the secrets of {service}",
                expected="one of them: the cluster's secret opens every service's",
                fix=f"leave {CLUSTER_SECRET} and {CLUSTER_SECRET_EARLIER} out",
                where=SERVICE_SECRETS,
            )
        if own or not (given or earlier or NEEDS[service]):
            return ServiceSecrets.parse(service, own)
        return ServiceSecrets.derive(service, given, earlier)
