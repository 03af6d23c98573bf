"""Completion in bash of words that hold a colon, such as ids of models.

bash takes a colon for the end of a word (COMP_WORDBREAKS): it passes `rl:tiny` as `rl`, `:` and `tiny`, and replaces
only `tiny` with the completion.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable

from synth.cli.tui.output import print_piece
from synth.runtime.lines import split_lines

#: bash sets this variable to request completions; the words are in COMP_WORDS, a line each.
ASKED = ("_SYNTHCTL_COMPLETE", "complete_bash")


def join_words(words: list[str], cursor: int) -> tuple[list[str], int, str]:
    """Put together what bash has taken apart at colons.

    cursor: the index of the word that is completed. Returns the words, its index among them, and how it begins with
    what bash keeps: "" for a word that was whole.
    """
    joined: list[str] = []
    kept, at = "", cursor
    for i, word in enumerate(words):
        if len(joined) > 1 and word and (word.startswith(":") or joined[-1].endswith(":")):
            joined[-1] += word
            if i <= cursor:
                at -= 1
            if i == cursor:
                kept = joined[-1][: joined[-1].rindex(":") + 1]
        else:
            joined.append(word)
    return joined, at, kept


def complete_in_bash(complete: Callable[[], None]) -> None:
    """Run `complete` on whole words, and offer only what stands behind the last colon."""
    cursor = int(os.environ.get("COMP_CWORD", "0"))
    words, cursor, kept = join_words(os.environ.get("COMP_WORDS", "").split("\n"), cursor)
    os.environ |= {"COMP_WORDS": "\n".join(words), "COMP_CWORD": str(cursor)}
    offered = io.StringIO()
    try:
        with contextlib.redirect_stdout(offered):
            complete()
    finally:
        print_piece("".join(f"{line.removeprefix(kept)}\n" for line in split_lines(offered.getvalue())))
