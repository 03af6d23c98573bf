"""How alike two texts are, from 0 to 1: edits, shared n-grams, and the longest that both have in common.

- fuzzy_match: rapidfuzz's ratio of the characters: 1 - insertions and deletions / characters of both;
- bleu: Papineni et al. 2002, up to four words, smoothed (method 1 of Chen and Cherry 2014), of one reference;
- gleu: Wu et al. 2016 (arXiv 1609.08144), section 3.3: the smaller of precision and recall of one to four words;
- rouge_1 to rouge_5, rouge_l: Lin 2004, as F1: of n words in a row, and of the longest common subsequence.

Words are runs of letters and digits, and single other characters but spaces; for ROUGE in small letters, and without
those others.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from synth.graders.schema import Metric

_WORDS = re.compile(r"\w+|[^\w\s]")
_ROUGE_WORDS = re.compile(r"\w+")


def similarity(metric: Metric, text: str, reference: str) -> float:
    """Return how similar a text is to its reference."""
    # The extra `graders` brings them, and no other grader needs it.
    from rapidfuzz import fuzz
    from rapidfuzz.distance import LCSseq

    if metric == "fuzzy_match":
        return fuzz.ratio(text, reference) / 100
    if metric in ("bleu", "gleu"):
        said, wanted = _WORDS.findall(text), _WORDS.findall(reference)
        if not said or not wanted:
            return float(said == wanted)
        return _bleu(said, wanted) if metric == "bleu" else _gleu(said, wanted)
    said, wanted = _ROUGE_WORDS.findall(text.lower()), _ROUGE_WORDS.findall(reference.lower())
    if not said or not wanted:
        return float(said == wanted)
    if metric == "rouge_l":
        return _f1(LCSseq.similarity(said, wanted), len(said), len(wanted))
    n = int(metric.removeprefix("rouge_"))
    ours, theirs = _n_grams(said, n), _n_grams(wanted, n)
    return _f1((ours & theirs).total(), ours.total(), theirs.total())


# nltk is imported at the first use: every service that grades would start half a second later.
def _bleu(words: list[str], reference: list[str]) -> float:
    from nltk.translate import bleu_score  # pyright: ignore[reportMissingTypeStubs]

    untyped: Any = bleu_score
    smoothed = untyped.SmoothingFunction().method1
    # A text of fewer than four words has no four in a row: the shorter ones weigh more then.
    return float(untyped.sentence_bleu([reference], words, smoothing_function=smoothed, auto_reweigh=True))


def _gleu(words: list[str], reference: list[str]) -> float:
    from nltk.translate import gleu_score  # pyright: ignore[reportMissingTypeStubs]

    untyped: Any = gleu_score
    return float(untyped.sentence_gleu([reference], words))


def _n_grams(words: list[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))


def _f1(shared: int, ours: int, theirs: int) -> float:
    return 2 * shared / (ours + theirs) if ours + theirs else 0.0
