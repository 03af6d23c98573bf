"""`synthd NAME`: one service as one process.

`synthd bus init` provisions the bus, `synthd bus check` compares it, `synthd bus config` prints the configuration of
nats-server, `synthd bus issuer` the key that lets subscribers from outside in, `synthd bus nkey USER` a key with which
a user of the bus logs in.
`synthd bus backup DIR` saves the log, the keys and the blobs of a running cluster; `synthd bus restore DIR` puts them
into an empty one. `synthd bus archive DIR ORG [JOB]` copies what there is of an organisation or of a job that has ended
into a folder, to be kept; `synthd bus erase ORG [JOB]` erases from the log what was deleted, `synthd bus sweep`
does so for each job and file that is deleted, for ever. `synthd bus orphans [--delete]` lists the blobs that nothing
refers to. `synthd bus newer [--drop]` lists the events that only a newer version could read, and drops them where there
is none. `synthd bus reseal` seals every stored secret with the current one.
`synthd secrets SERVICE` prints what one service needs of the cluster's secrets, `synthd secrets` that of all.
"""

from __future__ import annotations

import importlib
import sys
from typing import NoReturn

from synth.errors import UserError
from synth.events.catalogue import SERVICES
from synth.runtime.extras import install_command
from synth.runtime.process_end import run_and_end
from synth.runtime.startup import collector_off

_USAGE = f"usage: synthd {{{'|'.join(SERVICES)}}}  |  synthd bus init|check|config|issuer|nkey USER"
_USAGE += "  |  synthd bus backup DIR|restore DIR  |  synthd bus archive DIR ORG [JOB]  |  synthd bus erase ORG [JOB]"
_USAGE += "  |  synthd bus orphans [--delete]  |  synthd bus newer [--drop]"
_USAGE += "  |  synthd bus sweep  |  synthd bus reseal  |  synthd secrets [SERVICE]"


def program() -> NoReturn:
    """Return the process `synthd`."""
    run_and_end(main)


def main(argv: list[str] | None = None) -> None:
    """Run the command of the command line; exits with its code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        sys.exit(_run(arguments))
    except ModuleNotFoundError as error:
        sys.stderr.write(f"{arguments[0]} needs: {install_command(error)}\n")
        sys.exit(2)
    except UserError as error:
        # A setting is wrong: no service and no log has begun.
        sys.stderr.write(f"error: {error}\n")
        sys.exit(1)


def _run(arguments: list[str]) -> int:
    match arguments:
        case [name] if name in SERVICES:
            with collector_off():
                service = importlib.import_module(f"synth.{name}.app")
            return service.main()
        case ["bus" | "secrets", *_]:
            # Imported here: every service runs without it.
            from synth import bus_admin

            code = bus_admin.run(arguments)
        case _:
            code = None
    if code is None:
        sys.stderr.write(_USAGE + "\n")
        return 2
    return code


if __name__ == "__main__":
    program()
