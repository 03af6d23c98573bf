"""Whether the rows of a job's file can be rendered with its model's chat template: decided before the job starts.

A file that passed is not rendered again for the same model: an empty blob records it, named by all inputs of the
verdict. A bad file is rendered again for each job; it stops at its first bad lines.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from weakref import WeakValueDictionary

from synth.blobs import BlobStore
from synth.chat.template_source import RenderOptions
from synth.errors import Problem, UserError
from synth.fairness.slots import FairSlots
from synth.methods.job import Job
from synth.models import Registry
from synth.models.template_source import read_template_source
from synth.runtime import logs
from synth.verifier.files import ReadyFile
from synth.verifier.render_process import render_rows
from synth.verifier.settings import VerifierSettings

log = logs.get("verifier")


class NotRenderedInTime(UserError):
    """The rows of a file were not rendered within its deadline."""


@dataclass(frozen=True)
class Rendering:
    """Renders the files of all jobs that one process verifies, some at a time, by turns of their organisations."""

    blobs: BlobStore
    registry: Registry
    settings: VerifierSettings
    slots: FairSlots
    _locks: WeakValueDictionary[str, asyncio.Lock] = field(
        default_factory=WeakValueDictionary[str, asyncio.Lock], repr=False
    )

    def template_problems(self, job: Job, *, where: str) -> list[Problem]:
        """Return the problem of a model without a chat template; nothing if the model's files are not here."""
        options = self.options(job, date.min)
        if options is None or options.source.templates:
            return []
        return [
            Problem(
                what=f"{job.model!r} has no chat template, and a job renders messages with one",
                expected="a model whose tokenizer has a chat template",
                fix="name its instruct variant, or put a chat_template.jinja into its folder",
                where=where,
            )
        ]

    async def check(
        self, job: Job, file: ReadyFile, *, org: str, day: date, where: str, within: float | None = None
    ) -> None:
        """Raise `UserError` with the bad lines of a file; `NotRenderedInTime` after its deadline.

        within: seconds, if the caller waits for less than the file's own deadline.
        """
        options = self.options(job, day)
        if options is None or not options.source.templates:
            return
        key = f"orgs/{org}/rendered/{file.rows.sha256}-{options.digest()}"
        lock = self._locks.setdefault(key, asyncio.Lock())
        deadline = self.settings.render_deadline_s(file.rows.size)
        try:
            async with asyncio.timeout(within), lock:
                if await self.blobs.find_bytes(key) is not None:
                    return
                async with self.slots.hold(org), asyncio.timeout(deadline):
                    problems = await render_rows(self.blobs.stream(file.rows), options)
        except TimeoutError as error:
            limit = deadline if within is None else min(within, deadline)
            raise NotRenderedInTime(
                f"the rows of {file.name!r} were not rendered within {limit:g} s (SYNTH_RENDER_BYTES_PER_S)",
                expected="rows that the model's chat template renders faster",
                fix="divide the file, or shorten its longest conversations",
                where=where,
            ) from error
        log.info("file rendered", org=org, size=file.rows.size, bad_lines=len(problems))
        if problems:
            raise UserError(
                [
                    Problem(
                        what=f"{file.name!r} has rows that {job.model} cannot be trained on",
                        expected="rows that the model's chat template renders",
                        fix="correct the file, upload it again, and submit the job with the new id",
                        where=where,
                    ),
                    *(Problem(what=p.reason, where=f"{file.name}:{p.line} {p.path}") for p in problems),
                ]
            )
        await self.blobs.put_bytes(key, b"")

    def options(self, job: Job, day: date) -> RenderOptions | None:
        """Return how the rows of a job are rendered; None if the files of its model are not on this machine."""
        try:
            spec = self.registry.find(job.model)
        except UserError:
            return None
        if spec.path is None:
            return None
        return RenderOptions(
            source=read_template_source(Path(spec.path)),
            kind=job.rows or "prompts",
            sees=spec.vision is not None,
            images=1 if job.vision is None else job.vision.max_images_per_message,
            day=day,
        )
