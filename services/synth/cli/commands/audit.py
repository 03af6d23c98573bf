"""`synthctl audit`: who did or tried what, with which key, and from where."""

from __future__ import annotations

from collections import deque
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from synth.cli.commands.keys import read_seconds
from synth.cli.connect import open_client
from synth.cli.tui import output
from synth.cli.tui.output import Format, Output

if TYPE_CHECKING:
    from synth.api.audit import AuditRecord


def audit(
    ctx: typer.Context,
    since: Annotated[str, typer.Option(help="How far back, as 90d, 12h or 30m.")] = "1d",
    org: Annotated[str | None, typer.Option(help="Only this organisation's records; needs an operator's key.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many, the newest.")] = 50,
    fmt: Output = Format.TABLE,
) -> None:
    """Show failed log-ins, refusals, changes to keys, deletions and what operators did, the newest last.

    Shows the records of your organisation, with a key of scope `keys`; an operator's key shows every organisation's.
    """
    now = datetime.now(UTC)
    # Nothing is older than 1970, and a date has four digits for its year.
    begin = now - timedelta(seconds=min(read_seconds(since, "--since"), int(now.timestamp())))
    kept: deque[AuditRecord] = deque(maxlen=limit)
    seen = 0
    with open_client(ctx) as client:
        for record in client.operator.audit(since=begin, org=org):
            kept.append(record)
            seen += 1
    if fmt is Format.JSON:
        return output.print_json(list(kept))
    if not kept:
        return output.message(f"nothing was recorded in the last {since}")
    rows = [
        [
            output.age(r.until),
            r.kind,
            str(r.status),
            r.key,
            r.action,
            r.about or "-",
            r.address or "-",
            r.org or "-",
            str(r.count),
        ]
        for r in kept
    ]
    output.print_table(("age", "kind", "status", "key", "action", "of", "from", "org", "times"), rows, wrap="of")
    if seen > limit:
        output.hint(f"{seen - limit} older ones are not shown; --limit {seen} shows them")
    return None
