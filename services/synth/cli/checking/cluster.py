"""Ask the cluster that a job would be submitted to whether it would accept the job."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from synth.api.schemas import JobCheck
from synth.cli.submission import CheckedJob, submission_body
from synth.cli.tui import output
from synth.client import Client
from synth.client.connections.config import Config
from synth.client.connections.known_origins import UnconfirmedOrigin, require_confirmed
from synth.console.errors import CliError, NotAuthorised, Unreachable, UsageProblem

#: Characters of a file's id that the API accepts.
_LONGEST_NAME = 128


@dataclass
class AskedCluster:
    """A cluster that may be unavailable.

    unasked: why it cannot check a job; "" if it can. here: it is the cluster of this machine.
    needed: raise an error if the cluster cannot be reached or refuses the key.
    """

    client: Client | None
    here: bool
    unasked: str = ""
    needed: bool = False

    def check(self, job: CheckedJob) -> JobCheck | None:
        """Have the cluster check a job; None if it cannot. Raises `UsageProblem` for a job that it would refuse."""
        if self.client is None or self.unasked:
            return None
        try:
            with output.status("waiting for the cluster to check the job"):
                return self.client.jobs.check(submission_body(job, files=_files(job)))
        except UsageProblem:
            raise
        except CliError as error:
            if self.needed and isinstance(error, NotAuthorised | Unreachable):
                raise
            self.unasked = error.problems[0].what
            return None


@contextmanager
def open_cluster(config: Config) -> Iterator[AskedCluster]:
    """Open the cluster after one request that checks if it answers. Without a key, send no request."""
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


def _files(job: CheckedJob) -> dict[str, str]:
    """Return the ids of the datasets for the check; a dataset that is not uploaded yet goes by its future name."""
    if job.job.rows == "prompts":
        return {}
    return {
        role: file if file.startswith("file_") else Path(file).name[:_LONGEST_NAME] for role, file, _ in job.job.files
    }
