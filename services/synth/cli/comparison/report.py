"""The report of a comparison: Markdown and HTML, from the same tables."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from jinja2 import Environment

from synth.cli.comparison.models import ModelResult, Plan, worst_rows
from synth.cli.comparison.paired import against_first, verdict
from synth.cli.comparison.table import MARKS, paired_table
from synth.cli.sampling.answers import AnswerFile, answers_of
from synth.cli.sampling.budget import Price
from synth.cli.sampling.rows import PromptRow
from synth.cli.sampling.run import requests_of

Json = dict[str, Any]

#: Rows that a report shows side by side.
WORST = 20


@dataclass(frozen=True)
class Table:
    """A table as text: its head, and its rows."""

    head: list[str]
    rows: list[list[str]]


@dataclass(frozen=True)
class ShownRow:
    """A row with what each model replied. title: the row and the scores. prompt, reference: as text."""

    title: str
    prompt: str
    reference: str
    replies: list[tuple[str, str]]


def figures(results: Sequence[ModelResult], prices: dict[str, Price]) -> Table:
    """Return the figures of each model beside its score: a model a row, without the columns that no model has."""
    columns: dict[str, list[str]] = {
        "model": [f"{mark} {r.model}" for mark, r in zip(MARKS, results, strict=False)],
        "wins over A": [_wins(r) for r in results],
        "order decided": [f"{r.order_decided} of {len(r.wins)}" if r.wins else "-" for r in results],
        "valid formats": [_share(r.formats.valid, r.formats.total) for r in results],
        "valid tool calls": [_share(r.tool_calls.valid, r.tool_calls.total) for r in results],
        "median latency": [_seconds(r.latency(0.5)) for r in results],
        "95 % latency": [_seconds(r.latency(0.95)) for r in results],
        "tokens a reply": [_figure(r.completion_tokens / len(r.seconds) if r.seconds else None) for r in results],
        "cost of 1,000 calls": [_figure(r.cost_of_1000(prices.get(r.model))) for r in results],
        "cut off": [str(r.truncated) if r.truncated else "-" for r in results],
        "refused rows": [str(len(r.failures)) if r.failures else "-" for r in results],
        "replies without a score": [str(len(r.unscored)) if r.unscored else "-" for r in results],
    }
    shown = {name: cells for name, cells in columns.items() if any(cell != "-" for cell in cells)}
    return Table([*shown], [list(cells) for cells in zip(*shown.values(), strict=True)])


def write_report(plan: Plan, results: Sequence[ModelResult], prices: dict[str, Price]) -> list[str]:
    """Write `report.md` and `report.html` to the plan's folder. Returns their paths."""
    measured = [result.measured for result in results]
    differences = against_first(measured)
    scores = Table(*paired_table(measured, differences, heading="model", unit="row"))
    sentences = [
        verdict(difference, first="A", other=mark, unit="row")
        for mark, difference in zip(MARKS[1:], differences[1:], strict=False)
    ]
    facts = [
        ("rows", str(plan.rows.path)),
        ("score", plan.scorer.title),
        *([("judge", plan.referee.model)] if plan.referee else []),
        ("replies a row", str(plan.samples)),
        ("written", datetime.now(UTC).isoformat(timespec="seconds")),
        *((f"{mark} served by", r.where) for mark, r in zip(MARKS, results, strict=False)),
    ]
    content = {
        "title": " and ".join(result.model for result in results),
        "facts": facts,
        "scores": scores,
        "figures": figures(results, prices),
        "sentences": sentences,
        "rows": _shown_rows(plan, results),
    }
    paths: list[str] = []
    for name, text in (("report.md", _markdown(content)), ("report.html", _HTML.render(content))):
        (plan.folder / name).write_text(text, encoding="utf-8")
        paths.append(str(plan.folder / name))
    return paths


def _shown_rows(plan: Plan, results: Sequence[ModelResult]) -> list[ShownRow]:
    """Read the worst rows again, with their replies."""
    order = worst_rows(results, WORST)
    shown_rows, shown = set(order), dict[int, ShownRow]()
    files = [AnswerFile(plan.folder / "answers", endpoint.model) for endpoint in plan.endpoints]
    try:
        for row in islice(plan.rows, max(order, default=0)):
            if row.number in shown_rows:
                shown[row.number] = _shown_row(plan, results, files, row)
    finally:
        for file in files:
            file.close()
    return [shown[number] for number in order]


def _shown_row(plan: Plan, results: Sequence[ModelResult], files: Sequence[AnswerFile], row: PromptRow) -> ShownRow:
    replies: list[tuple[str, str]] = []
    for mark, result, endpoint, file in zip(MARKS, results, plan.endpoints, files, strict=False):
        _, requests = requests_of(row, endpoint, plan.options, plan.samples)
        answer = next(answers_of(file, row.number, requests), None)
        score = result.scores.get(row.number)
        head = f"{mark} {result.model}: {_figure(score)}"
        replies.append((head, _message(answer.message) if answer else result.failures.get(row.number, "-")))
    return ShownRow(
        title=f"row {row.number}",
        prompt="\n\n".join(f"{message.get('role')}: {_message(message)}" for message in row.messages),
        reference=_message(row.reference) if row.reference else "",
        replies=replies,
    )


def _message(message: Json) -> str:
    """Return a message for the report: its text, images as their kind, and its tool calls as JSON."""
    content: Any = message.get("content")
    if isinstance(content, list):
        content = "\n".join(
            str(part.get("text")) if part.get("type") == "text" else f"[{part.get('type')}]" for part in content
        )
    calls = [json.dumps(call.get("function", call), ensure_ascii=False) for call in message.get("tool_calls") or []]
    return "\n".join(text for text in (content or message.get("refusal") or "", *calls) if text)


def _markdown(content: Json) -> str:
    lines = [f"# {_inline(content['title'])}", ""]
    lines += [f"- {name}: {_inline(value)}" for name, value in content["facts"]]
    for table in (content["scores"], content["figures"]):
        lines += ["", *_markdown_table(table)]
    lines += ["", *(f"{sentence[:1].upper()}{sentence[1:]}." for sentence in content["sentences"]), ""]
    if content["rows"]:
        lines += ["## The worst rows", ""]
    for row in content["rows"]:
        lines += [f"### {row.title}", ""]
        named = [("prompt", row.prompt), ("reference", row.reference), *row.replies]
        for name, text in named:
            if text:
                # Longer than any fence within the text.
                fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
                lines += [f"{_inline(name)}", "", f"{fence}text", text, fence, ""]
    return "\n".join(lines).rstrip() + "\n"


def _markdown_table(table: Table) -> list[str]:
    rows = [table.head, ["---"] * len(table.head), *table.rows]
    return ["| " + " | ".join(_inline(cell) for cell in row) + " |" for row in rows]


def _inline(text: str) -> str:
    return re.sub(r"([\\|`*<>\[\]])", r"\\\1", " ".join(text.split()))


def _wins(result: ModelResult) -> str:
    return f"{statistics.fmean(result.wins.values()):.1%} of {len(result.wins)}" if result.wins else "-"


def _share(valid: int, total: int) -> str:
    return f"{valid / total:.1%} of {total}" if total else "-"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


_HTML = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string("""\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1200px; margin: 2rem auto; padding: 0 1rem; color: #1c1e21; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.15rem; margin-top: 2.5rem; } h3 { font-size: 1rem; margin: 2rem 0 .5rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; } dt { color: #666; } dd { margin: 0; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; margin: 1rem 0; }
th, td { text-align: left; padding: .35rem .8rem .35rem 0; border-bottom: 1px solid #ddd; white-space: nowrap; }
.replies { display: grid; grid-template-columns: repeat(auto-fit, minmax(300px, 1fr)); gap: 1rem; }
.name { color: #666; font-size: .85rem; }
pre { background: #f5f6f7; padding: .6rem .8rem; border-radius: 6px; white-space: pre-wrap; overflow-wrap: anywhere;
  margin: .2rem 0 .8rem; max-height: 24rem; overflow-y: auto; font-size: .85rem; }
@media (prefers-color-scheme: dark) {
  body { background: #16181b; color: #e3e5e8; } pre { background: #22252a; } th, td { border-color: #3a3d42; }
  dt, .name { color: #9aa0a6; }
}
</style>
</head>
<body>
<h1>{{ title }}</h1>
<dl>{% for name, value in facts %}<dt>{{ name }}</dt><dd>{{ value }}</dd>{% endfor %}</dl>
{% for table in (scores, figures) %}
<div class="scroll"><table>
<tr>{% for cell in table.head %}<th>{{ cell }}</th>{% endfor %}</tr>
{% for row in table.rows %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</table></div>
{% endfor %}
{% for sentence in sentences %}<p>{{ sentence[:1] | upper }}{{ sentence[1:] }}.</p>
{% endfor %}
{% if rows %}<h2>The worst rows</h2>{% endif %}
{% for row in rows %}
<h3>{{ row.title }}</h3>
<div class="name">prompt</div><pre>{{ row.prompt }}</pre>
{% if row.reference %}<div class="name">reference</div><pre>{{ row.reference }}</pre>{% endif %}
<div class="replies">
{% for name, text in row.replies %}
<div><div class="name">{{ name }}</div><pre>{{ text }}</pre></div>
{% endfor %}
</div>
{% endfor %}
</body>
</html>
""")
