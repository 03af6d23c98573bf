"""The metrics of a succeeded job as the CSV file in OpenAI's `result_files`.

Nothing is stored: the file is generated from the job's metrics at each read.
"""

from __future__ import annotations

import asyncio
import csv
import io
from collections.abc import AsyncIterator

from synth.gateway.api.openai.views import FileObject, losses, result_file_id, unix_time
from synth.gateway.deps import Gateway
from synth.gateway.errors import ApiError, not_found
from synth.gateway.read_model.projection import JobRow
from synth.jobs.lifecycle import State

FILENAME = "step_metrics.csv"
_PREFIX = result_file_id("")
#: Steps that are read at a time: other requests are served between two pages.
_STEPS = 100


async def find_result(gateway: Gateway, org: str, file_id: str) -> JobRow | None:
    """Return the job whose results a file id names; None for the id of an uploaded file. Raises a 404."""
    if not file_id.startswith(_PREFIX):
        return None
    try:
        row = await gateway.job(org, file_id.removeprefix(_PREFIX))
    except ApiError as error:
        raise not_found("file", file_id) from error
    if row.job.state is not State.SUCCEEDED or row.job.kind == "eval":
        raise not_found("file", file_id)
    return row


async def result_object(gateway: Gateway, row: JobRow) -> FileObject:
    """Return the file in OpenAI's shape."""
    size = 0
    async for piece in result_csv(gateway, row):
        size += len(piece)
    return FileObject(
        id=result_file_id(row.job.id),
        bytes=size,
        created_at=unix_time(row.job.ended_at or row.job.created_at),
        filename=FILENAME,
        purpose="fine-tune-results",
        status="processed",
        status_details=None,
    )


async def result_csv(gateway: Gateway, row: JobRow) -> AsyncIterator[bytes]:
    """Yield the rows, one for each step, with OpenAI's names for the losses and our names for the other metrics."""
    names = gateway.read_model.metric_names(row.job.id)
    columns = list(dict.fromkeys([*losses(dict.fromkeys(names, 0.0)), *names]))
    yield _line(["step", *columns])
    step, more = -1, True
    while more:
        points, more = gateway.read_model.points(row.job.id, after_step=step, name=None, steps=_STEPS)
        by_step: dict[int, dict[str, float]] = {}
        for point in points:
            by_step.setdefault(point.step, {})[point.name] = point.value
        for step, values in by_step.items():
            shown = values | losses(values)
            yield _line([step, *(shown.get(column, "") for column in columns)])
        await asyncio.sleep(0)


def _line(cells: list[str | int | float]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue().encode()
