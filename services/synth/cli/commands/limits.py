"""`synthctl limits`: an organisation's limits on the cluster, and its present use of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from synth.cli.connect import open_client
from synth.cli.tui import output
from synth.cli.tui.output import Format, Output

if TYPE_CHECKING:
    from synth.api.schemas import Limit


def limits(ctx: typer.Context, fmt: Output = Format.TABLE) -> None:
    """Show your organisation's limits, its present use, and the setting with which an operator changes each limit.

    Requests, streams and uploads are counted by each gateway for itself.
    """

    with open_client(ctx) as client:
        current = client.limits()
    if fmt is Format.JSON:
        return output.print_json(current)
    rows = [[limit.what, _number(limit, limit.used), _most(limit), limit.at, limit.setting] for limit in current]
    output.print_table(("of", "used", "limit", "counted at", "set by"), rows)
    return None


def _most(limit: Limit) -> str:
    return "none" if limit.limit is None else _number(limit, limit.limit)


def _number(limit: Limit, value: float) -> str:
    return output.size(value) if limit.name == "file_bytes" else f"{value:,.0f}"
