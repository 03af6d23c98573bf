"""The cluster that a job would be submitted to, asked whether it would take it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from synth.api.schemas import JobCheck
from synth.cli.api.client import Client
from synth.cli.config import Config
from synth.cli.connections.known_origins import UnconfirmedOrigin, require_confirmed
from synth.cli.errors import CliError, NotAuthorised, Unreachable, UsageProblem
from synth.cli.submission import CheckedJob, submission_body
from synth.cli.tui import output
from synth.jobs.resolved import SftJob

#: Of a file's id, as the API takes it.
_LONGEST_NAME = 128


@dataclass
class AskedCluster:
    """A cluster that may be away. unasked: why it cannot be asked, "" while it can. here: it is this machine's own.

    needed: a cluster that cannot be reached, or refuses the key, is an error.
    """

    client: Client | None
    here: bool
    unasked: str = ""
    needed: bool = False

    def check(self, job: CheckedJob) -> JobCheck | None:
        """What it says of a job; None where it cannot be asked. Raises `UsageProblem` for what it would not take."""
        if self.client is None or self.unasked:
            return None
        try:
            with output.status("asking the cluster to check the job"):
                return self.client.check_job(submission_body(job, files=_files(job)))
        except UsageProblem:
            raise
        except CliError as error:
            if self.needed and isinstance(error, NotAuthorised | Unreachable):
                raise
            self.unasked = error.problems[0].what
            return None


@contextmanager
def open_cluster(config: Config) -> Iterator[AskedCluster]:
    """The cluster, asked once whether it is there; without a key it is not asked at all."""
    if config.api_key is None:
        yield AskedCluster(None, config.is_on_this_machine, "no SYNTH_API_KEY")
        return
    try:
        require_confirmed(config.api_key, config.backend)
    except UnconfirmedOrigin as error:
        yield AskedCluster(None, config.is_on_this_machine, error.problems[0].what)
        return
    # A check waits for no cluster that is away.
    with Client(config, retry_budget=0.0) as client:
        try:
            client.account()
        except CliError as error:
            yield AskedCluster(None, config.is_on_this_machine, error.problems[0].what)
            return
        yield AskedCluster(client, config.is_on_this_machine)


def _files(job: CheckedJob) -> dict[str, str | None]:
    """The datasets, as they would be sent: those that are still to be uploaded by the names that they would have."""
    found = job.job
    if not isinstance(found, SftJob):
        return {}
    named = {"training_file": found.training_file, "validation_file": found.validation_file}
    return {
        field: file and (file if file.startswith("file_") else Path(file).name[:_LONGEST_NAME])
        for field, file in named.items()
    }
