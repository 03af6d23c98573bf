"""The Prometheus metrics of the judge."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

CALLS = Counter("synth_judge_calls", "Calls of judges' APIs, by their HTTP status; none: no answer came", ["outcome"])
CALL_SECONDS = Histogram("synth_judge_call_seconds", "How long a call took, its wait for a turn left out")
UNREADABLE = Counter("synth_judge_unreadable", "Answers of judges that were no scores")
CACHED = Counter("synth_judge_cached", "Answers that were found in the cache")
WORKING = Gauge("synth_judge_questions", "Questions that are worked at or wait")
