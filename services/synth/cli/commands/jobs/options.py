"""Arguments that several commands of `synthctl jobs` share."""

from __future__ import annotations

from typing import Annotated

import typer

JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="The job's id.", show_default=False)]
