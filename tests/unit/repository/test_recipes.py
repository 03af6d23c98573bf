"""The recipes of CONTRIBUTING: each file of a step has its example, and the steps are enough."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rich.console import Console

from contracts.asyncapi import asyncapi
from contracts.event_page import events_page
from synth.api.schemas import EventView
from synth.bus.server.permissions import may_publish
from synth.cli.tui import view
from synth.cli.tui.progress import Progress
from synth.events.catalogue import CATALOGUE, Event, EventSpec, Reading, Role, event

ROOT = Path(__file__).parents[3]
_RECIPES = {
    "An event": "RolloutJudged|rollout\\.judged",
    "A metric in `jobs watch`": "ppo_kl",
    "An endpoint with its command": r'"/?limits"|/api/limits|LimitList|client\.limits',
    "A model family": "(?i)olmo_?3",
    "A key of the TOML": "weight_decay",
}


def recipe(title: str) -> str:
    """Return the text of a recipe: from its bold title to the next one."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    (body,) = re.findall(rf"^\*\*{re.escape(title)}\.\*\*(.*?)(?=^\*\*|^## )", text, re.DOTALL | re.MULTILINE)
    return body


def steps(title: str) -> list[str]:
    """Return the file of each step."""
    return re.findall(r"^\d+\. `([^`]+)`:", recipe(title), re.MULTILINE)


@pytest.mark.parametrize(("title", "example"), _RECIPES.items(), ids=_RECIPES)
def test_each_file_of_a_recipe_has_the_example(title: str, example: str):
    files = steps(title)
    assert len(files) == len(re.findall(r"^\d+\. ", recipe(title), re.MULTILINE)) > 2
    assert [file for file in files if not re.search(example, (ROOT / file).read_text())] == []


@pytest.fixture
def scratch_event() -> Iterator[EventSpec]:
    @event("train.measured", by=Role.TRAINER, reads={Role.JUDGE: Reading.QUEUE})
    class TrainMeasured(Event, frozen=True):
        """The trainer has measured something."""

        step: int

    yield CATALOGUE["train.measured"]
    del CATALOGUE["train.measured"]


def test_the_permissions_and_documents_of_an_event_follow_from_its_class(scratch_event: EventSpec):
    subject = "train.measured.>"
    assert subject in may_publish("trainer", ("default",))
    assert subject not in may_publish("judge", ("default",))
    assert "### train.measured" in events_page()
    assert "The trainer has measured something." in events_page()
    assert "train.measured" in asyncapi()


def test_a_metric_of_a_step_is_watched_by_one_row(monkeypatch: pytest.MonkeyPatch):
    progress = Progress("job_1")
    started = EventView(seq=1, type="job.started", time=datetime(2026, 1, 1, tzinfo=UTC), data={"attempt": 1})
    values = {"step": 1, "of": 10, "values": {"scratch_metric": 0.125}}
    step = EventView(seq=2, type="train.step", time=datetime(2026, 1, 1, 0, 1, tzinfo=UTC), data=values)
    progress.apply(started)
    progress.apply(step)
    assert "scratch" not in _drawn(progress)
    monkeypatch.setattr(view, "_FIGURES", (*view._FIGURES, ("scratch_metric", "scratch")))
    assert "scratch 0.125" in _drawn(progress)


def _drawn(progress: Progress) -> str:
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(view.JobView(progress))
    return console.export_text()
