"""The process in which a source grades one sample: the task on standard input, the answer as one line of JSON.

It is started by its path, so that it imports nothing of this project. The source's output is discarded.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import Any

_SHOWN = 500


def main() -> None:
    """Grade the sample, and write its score or the error."""
    task: dict[str, Any] = json.load(sys.stdin)
    # print must not write into the answer.
    answer, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    os.write(answer, json.dumps(_graded(task)).encode())


def _graded(task: dict[str, Any]) -> dict[str, Any]:
    try:
        space: dict[str, Any] = {"__name__": "grader"}
        exec(compile(task["source"], "grader", "exec"), space)
        score = space["grade"](task["sample"], task["item"])
        # As text: JSON has neither NaN nor infinity. A bool and a numpy number are numbers, too; a text is not.
        return {"error": f"it returned {score!r}"[:_SHOWN]} if isinstance(score, str) else {"score": repr(float(score))}
    except MemoryError:
        return {"error": "it ran out of memory"}
    except BaseException as error:  # noqa: BLE001 - also SystemExit is its answer
        last = traceback.extract_tb(error.__traceback__)[-1]
        line = f" (line {last.lineno})" if last.filename == "grader" else ""
        return {"error": f"{type(error).__name__}: {error}"[:_SHOWN] + line}


main()
