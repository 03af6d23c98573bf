"""Import an OpenAI account into a folder: every job with its files, checkpoints and evals, and a job file for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from synth.cli.openai_account.account import AccountSource, Json
from synth.cli.openai_account.bases import Needs, Proposal, propose_base
from synth.cli.openai_account.folder import ImportFolder, checked_id, read_needs
from synth.cli.openai_account.job_files import job_file, method_of
from synth.console.errors import NotFound
from synth.errors import UserError
from synth.models.table import QWEN3


@dataclass
class ImportedJob:
    """A job of the account. file: its job file, "" if none could be written; problem: why not.

    kept: the job file existed, and is unchanged.
    """

    id: str
    method: str
    model: str
    status: str
    rows: int | None = None
    base: str = ""
    file: str = ""
    kept: bool = False
    problem: str = ""


@dataclass
class ImportReport:
    """The result of an import. missing: deleted files of the jobs, with their jobs."""

    jobs: list[ImportedJob] = field(default_factory=list[ImportedJob])
    evaluations: int = 0
    downloaded: int = 0
    kept: int = 0
    missing: list[str] = field(default_factory=list[str])


def import_account(
    account: AccountSource,
    folder: ImportFolder,
    *,
    base: str | None,
    available: Sequence[str] | None,
    progress: Callable[[str], None],
) -> ImportReport:
    """Import every job and eval of an account.

    base: the base of each job file; None proposes one. available: the cluster's bases; None if they are not known.
    progress: called with a line of text about the present step.
    """
    report = ImportReport()
    for job in account.jobs():
        progress(f"{len(report.jobs) + 1} jobs, now {job.get('id')}")
        report.jobs.append(_import_job(account, folder, job, report, base, available))
    progress("evals")
    try:
        for evaluation in account.evaluations():
            folder.write_object("evals", evaluation)
            report.evaluations += 1
    except NotFound:
        # OpenAI may remove the API of evals before the API of jobs.
        report.missing.append("evals: the account serves none")
    return report


def _import_job(
    account: AccountSource,
    folder: ImportFolder,
    job: Json,
    report: ImportReport,
    base: str | None,
    available: Sequence[str] | None,
) -> ImportedJob:
    id = checked_id(job.get("id"))
    imported = ImportedJob(id, method_of(job), str(job.get("model", "")), str(job.get("status", "")))
    folder.write_object("jobs", {**job, "checkpoints": _checkpoints(account, id)})
    results = job.get("result_files")
    for result in cast(list[Any], results) if isinstance(results, list) else []:
        _fetch(account, folder, checked_id(result), id, report, decode=True)
    paths = {
        name: _fetch(account, folder, str(job[name]), id, report)
        for name in ("training_file", "validation_file")
        if job.get(name)
    }
    data = paths.get("training_file")
    if data is None:
        imported.problem = "its training file is gone"
        return imported
    needs = {name: read_needs(folder.path / path) for name, path in paths.items() if path is not None}
    all_rows = Needs(
        rows=needs["training_file"].rows,
        images=any(n.images for n in needs.values()),
        longest=max(n.longest for n in needs.values()),
    )
    online = imported.method == "reinforcement"
    chosen = (
        Proposal(base, "named by --base", local=base not in QWEN3)
        if base is not None
        else propose_base(imported.model, all_rows, online=online, available=available)
    )
    imported.rows, imported.base = all_rows.rows, chosen.id
    validation = paths.get("validation_file")
    try:
        text = job_file(
            job,
            data=str(folder.path / data),
            validation=str(folder.path / validation) if validation else None,
            rows=needs,
            base=chosen,
        )
    except UserError as error:
        imported.problem = "; ".join(problem.text() for problem in error.problems)
        return imported
    name = f"jobs/{id}.toml"
    imported.kept = not folder.write_once(name, text)
    imported.file = str(folder.path / name)
    return imported


def _fetch(
    account: AccountSource,
    folder: ImportFolder,
    file_id: str,
    job_id: str,
    report: ImportReport,
    *,
    decode: bool = False,
) -> str | None:
    """Download a file of a job. Returns its path below the folder; None if it is gone, which is reported."""
    try:
        path, downloaded = folder.fetch(account, file_id, decode=decode)
    except NotFound as error:
        report.missing.append(f"{file_id} of {job_id}: {error.problems[0].what}")
        return None
    report.downloaded += downloaded
    report.kept += not downloaded
    return str(path.relative_to(folder.path))


def _checkpoints(account: AccountSource, job_id: str) -> list[Json]:
    try:
        return account.checkpoints(job_id)
    except NotFound:
        return []
