"""`python -m synth.cli` is `synthctl`."""

from synth.cli.app import program

program()
