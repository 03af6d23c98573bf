"""Runs a filter: rules, spool, files. A report counts the rows that each key dropped, also if no row is left."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from synth.cli.filtering.rules import Candidate, Rules, dropped_at_first, dropped_when_read
from synth.cli.filtering.sources import ReadTrace, Row, Source
from synth.cli.filtering.spool import Spool
from synth.console.errors import CliError
from synth.datasets.conversations import read_line
from synth.datasets.token_estimate import tokens_in

#: Tokens that a chat template writes around a message.
_AROUND_A_MESSAGE = 5


class Report(msgspec.Struct, kw_only=True):
    """The counts of a filter's traces and rows.

    seen: traces that were read; stopped: reading ended early, at `limit`. without_reward: of the seen. dropped: traces
    by the key that dropped each, or by their fault; dropped_rows: rows likewise. kept: traces with a row. rows,
    validation_rows: written. ids: of the kept traces, if requested.
    """

    source: str
    seen: int = 0
    stopped: bool = False
    without_reward: int = 0
    dropped: dict[str, int] = {}
    dropped_rows: dict[str, int] = {}
    kept: int = 0
    rows: int = 0
    validation_rows: int = 0
    output: str = ""
    validation: str | None = None
    file: str | None = None
    validation_file: str | None = None

    def drop(self, key: str, *, row: bool = False, count: int = 1) -> None:
        """Count the traces or rows that a key dropped."""
        if count:
            counts = self.dropped_rows if row else self.dropped
            counts[key] = counts.get(key, 0) + count

    def sentences(self) -> Iterator[str]:
        """Yield the report for people."""
        stopped = ", and no more: `limit` was reached" if self.stopped else ""
        yield f"{_count(self.seen, 'trace')} of {self.source} seen{stopped}; {self.without_reward:,} without a reward"
        for counts, word in ((self.dropped, "trace"), (self.dropped_rows, "row")):
            for key, count in sorted(counts.items(), key=lambda item: -item[1]):
                yield f"{key} dropped {_count(count, word)}" + _WHY.get(key, "")
        aside = f", {_count(self.validation_rows, 'row')} of them for validation" if self.validation_rows else ""
        yield f"{_count(self.rows, 'row')} of {_count(self.kept, 'trace')} kept{aside}"


#: The faults of traces and rows that no key dropped.
_WHY = {
    "expired": ": they are not kept any more",
    "shortened": ": they were not kept whole",
    "images": ": an image in them is gone",
    "cut off": ": each reply in them ends at its token limit, and would teach the model to end there",
    "no reply": ": they have no reply to learn from",
    "not trainable": ": no training file may have such a line",
}


def run_filter(rules: Rules, source: Source) -> Report:
    """Write the rows. Raises `CliError` if none is left, with the count of each key."""
    assert rules.output is not None
    report = Report(source=source.name, output=rules.output)
    output = Path(rules.output).expanduser()
    with tempfile.TemporaryDirectory(prefix="synthctl-filter-") as folder:
        spool = Spool(Path(folder) / "rows.db")
        try:
            _fill(spool, rules, source, report)
            _choose(spool, rules, report)
            if not report.rows:
                raise _nothing_left(report)
            output.parent.mkdir(parents=True, exist_ok=True)
            if rules.split.enabled:
                report.validation_rows = spool.split(rules.split)
            if report.validation_rows:
                validation = output.with_name(rules.split.val_file)
                if validation == output:
                    raise CliError(f"rows and validation are both {output}", fix="set [split].val_file")
                report.validation = str(validation)
                _write(validation, spool.lines(validation=True))
            _write(output, spool.lines())
            _write_stats(spool, rules, report, output)
        finally:
            spool.close()
    return report


def _fill(spool: Spool, rules: Rules, source: Source, report: Report) -> None:
    """Put the rows of each trace that passes into the spool."""

    def wanted(candidate: Candidate) -> bool:
        report.seen += 1
        report.without_reward += candidate.reward is None
        key = dropped_at_first(rules, candidate)
        if key is not None:
            report.drop(key)
        return key is None

    # If no later trace can replace an earlier one, the first rows are enough.
    first_come = not (rules.top_k or rules.deduplicate or rules.shuffle)
    enough = rules.limit + (rules.offset or 0) if rules.limit is not None and first_come else None
    for episode in source.episodes(wanted):
        key = dropped_when_read(rules, episode.judged) or episode.unusable
        if key:
            report.drop(key)
            continue
        rows = [(row, line) for row in episode.rows if (line := _line(rules, episode, row, report)) is not None]
        if not rows:
            if not episode.rows:
                report.drop("no reply")
            continue
        c = episode.candidate
        spool.add(
            c.id,
            rows,
            ranked=_ranked(rules, episode),
            reward=c.reward,
            stratum=_stratum(rules, episode),
            shuffle_seed=rules.shuffle_seed or 0,
            split_seed=rules.split.random_seed,
        )
        if enough is not None and spool.rows >= enough:
            report.stopped = True
            return


def _choose(spool: Spool, rules: Rules, report: Report) -> None:
    if rules.deduplicate:
        report.drop("deduplicate", row=True, count=spool.drop_copies())
    if rules.top_k is not None:
        report.drop("top_k", count=spool.keep_best(rules.top_k))
    report.rows = spool.choose(shuffle=bool(rules.shuffle), offset=rules.offset or 0, limit=rules.limit)
    report.kept = spool.kept_traces()


def _ranked(rules: Rules, episode: ReadTrace) -> str:
    task = episode.judged.facts.task_id or episode.candidate.env_name or ""
    return f"{task}:{episode.candidate.seed}" if rules.top_k_by == "seed" else task


def _stratum(rules: Rules, episode: ReadTrace) -> str:
    match rules.split.stratify_by:
        case "achievements":
            return str(episode.judged.facts.achievements or 0)
        case "reward":
            return str(episode.candidate.reward)
        case "seed":
            return str(episode.candidate.seed)
        case "task":
            return episode.judged.facts.task_id or ""
        case None:
            return ""


def _line(rules: Rules, episode: ReadTrace, row: Row, report: Report) -> bytes | None:
    """Return the row as a line of a training file; None for one that is dropped, and counted."""
    replies = [message for message in row["messages"] if message.get("role") == "assistant"]
    empty = [reply for reply in replies if not reply.get("content") and not reply.get("tool_calls")]
    if empty and (rules.sft.filter_empty_responses or len(empty) == len(replies)):
        report.drop("sft.filter_empty_responses" if rules.sft.filter_empty_responses else "no reply", row=True)
        return None
    line = msgspec.json.encode(row | _metadata(rules, episode))
    parsed = read_line(line)
    if isinstance(parsed, tuple):
        report.drop("not trainable", row=True)
        return None
    most = rules.sft.max_sequence_length
    if most is not None and sum(map(tokens_in, parsed.texts)) + _AROUND_A_MESSAGE * parsed.messages > most:
        report.drop("sft.max_sequence_length", row=True)
        return None
    return line


def _metadata(rules: Rules, episode: ReadTrace) -> Row:
    if not rules.include_metadata:
        return {}
    c = episode.candidate
    metadata: dict[str, Any] = {
        "session_id": c.id,
        "env_name": c.env_name,
        "policy_name": c.policy_name,
        "seed": c.seed,
        "total_reward": c.environment,
        "achievements_count": episode.judged.facts.achievements,
        "model": c.model,
        "created_at": c.created_at.isoformat() if c.created_at else None,
    }
    metadata |= c.metadata
    if c.reward != c.environment:
        metadata["reward"] = c.reward
    if episode.judged.scores:
        metadata["judge_scores"] = dict(episode.judged.scores)
    return {"metadata": metadata}


def _write(path: Path, lines: Iterator[bytes]) -> None:
    """Write a file whole, or leave the one that is there."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with partial.open("wb") as out:
            for line in lines:
                out.write(line + b"\n")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _write_stats(spool: Spool, rules: Rules, report: Report, output: Path) -> None:
    stats = rules.stats
    if not (stats.save_stats or stats.save_filtered_episode_ids):
        return
    counts = msgspec.json.encode({k: v for k, v in msgspec.structs.asdict(report).items() if v is not None})
    ids = (b"," * (n > 0) + msgspec.json.encode(id) for n, id in enumerate(spool.kept_ids()))
    path = output.with_name(stats.stats_file)
    with path.open("wb") as out:
        out.write(counts if not stats.save_filtered_episode_ids else counts[:-1] + b',"episode_ids":[')
        if stats.save_filtered_episode_ids:
            out.writelines(ids)
            out.write(b"]}")


def _nothing_left(report: Report) -> CliError:
    if not report.seen:
        fix = "evaluations keep the trace of every rollout, training keeps a share; `synthctl traces ls` shows them"
        return CliError(f"there is no trace of {report.source}", fix=fix)
    counts = report.dropped | report.dropped_rows
    reasons = ", ".join(f"{key} {count:,}" for key, count in sorted(counts.items(), key=lambda item: -item[1]))
    without = f" ({report.without_reward:,} have no reward)" if report.without_reward else ""
    what = f"none of {_count(report.seen, 'trace')} is left{without}: dropped by {reasons or 'offset'}"
    return CliError(what, fix="loosen the key that drops the most", where=report.source)


def _count(n: int, word: str) -> str:
    return f"{n:,} {word}{'' if n == 1 else 's'}"
