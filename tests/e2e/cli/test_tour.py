"""Every command, played against a cluster with finished jobs: all of it is there at each width, and raw in a pipe."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pytest
from rich.cells import cell_len

from synth.cli.tui.output import RAW_COLUMNS
from tests.e2e.cli.looks import LOOKS, Words, every_command
from tests.e2e.cli.terminal import Shown
from tests.e2e.platform import Platform, rl, sft
from tests.e2e.task_apps import Served
from tests.unit.cli.openai_account.account import write_export
from tests.unit.cli.test_serve import ONE

pytestmark = [pytest.mark.timeout(900), pytest.mark.long]

#: The commands that the tour leaves out, and why.
NOT_PLAYED: dict[Words, str] = {
    ("up",): "the cluster runs already: test_cluster.py starts others",
    ("demo",): "it starts a cluster of its own: CONTRIBUTING.md, `make demo`",
    ("down",): "the cluster is shared by the session: test_cluster.py ends others",
    ("backup",): "tests/e2e/test_backup.py backs a cluster of its own up",
    ("restore",): "it wants a cluster that has never run: tests/e2e/test_backup.py",
    ("serve",): "it runs until Ctrl-C: tests/unit/cli/test_serve.py",
    ("models", "pull"): "it asks the model hub: tests/unit/cli/test_pull.py asks one of its own",
    ("keys", "create"): "each look would be another key: tests/unit/cli/test_keys.py",
    ("keys", "judge", "add"): "it waits for the key: tests/unit/cli/test_keys.py",
    ("orgs", "create"): "each look would be another organisation for good: tests/e2e/test_tenancy.py",
}
#: Output that is a text of its own, printed as it is: a file, or what a model says.
VERBATIM: set[Words] = {("jobs", "config"), ("config", "init"), ("config", "schema"), ("chat",), ("deploy", "logs")}
#: What a program can read in a column of a piped table.
RAW: dict[str, Callable[[str], Any]] = {
    "created_at": datetime.fromisoformat,
    "time": datetime.fromisoformat,
    "bytes": int,
    "rows": int,
    "tokens": int,
    "up_seconds": float,
    "seconds": float,
    "reward": float,
    "evaluation": float,
    "last": float,
    "a": float,
}
CUT = re.compile(r"\S…(\s|$)")
#: Figures are rounded for people, and times told from now on.
FIGURE = re.compile(r"\d[.:]?\d|[▁█]")
STYLE = re.compile(r"\x1b\[[\d;]*m")


@dataclass(frozen=True)
class Screen:
    """A command as it is played. code: how it ends. whole: ids that must stand there unbroken. table: it is one."""

    words: Words
    arguments: tuple[str, ...] = ()
    code: int = 0
    whole: tuple[str, ...] = ()
    table: bool = False


def screens(p: Platform, url: str) -> list[Screen]:
    """The tour: jobs of each kind, which have ended, and then every command that there is to play."""
    shell = p.shell
    # So many that its replies end by themselves: what is cut off is no row of a dataset.
    trained = p.submit(sft(steps=80), "--dataset", "math.jsonl", "--tag", "study=tour")
    tail = "[evaluation]\nevery_n_iters = 1\ninstances = 2"
    played = p.submit(rl("tiny-qwen3", url, iterations=2, tail=tail), "--name", "tour")
    model = p.succeeded(trained)["model"]
    learnt = p.succeeded(played)["model"]
    evaluation = '[eval]\nmodel = "{}"\nseeds = "0-3"\nmax_tokens = 40\n'
    evals = [p.submit(evaluation.format(id), "--task-url", url) for id in ("tiny-qwen3", model)]
    for job in evals:
        p.succeeded(job)
    refused = p.submit(sft(model="tiny-qwen9"), "--dataset", "math.jsonl", "--no-preflight")
    assert p.outcome(refused)[0] == 3
    file = shell.json("files", "ls")[0]["id"]
    (shell.folder / "one_app.py").write_text(ONE.format(name="one"))
    # The same key is the same job, however often it is submitted.
    again = p.write(sft(steps=4))
    same = (again, "--dataset", "math.jsonl", "--idempotency", "tour")
    shell.ok("submit", *same, "--follow")
    run = ("--seeds", "0-3", "--max-tokens", "8", "--task-url", url, "--idempotency", "tour-eval", "--per-seed")
    rows = ("--limit", "4", "--max-tokens", "40")
    write_export(shell.folder / "exported")
    jobs, models, step = (trained, played, *evals, refused), (model, learnt), f"{learnt}:step_2"
    return [
        Screen(("setup",), ("--no-input",), whole=("SYNTH_API_KEY", "ENVIRONMENT_API_KEY"), table=True),
        Screen(("status",), table=True),
        Screen(("logs",), ("gateway", "--tail", "5")),
        Screen(("doctor",), whole=("ENVIRONMENT_API_KEY",), table=True),
        Screen(("submit",), (*same, "--follow")),
        Screen(("submit",), ("missing.toml",), code=2, whole=("missing.toml",)),
        Screen(("chat",), (model, "-m", "What is 1 + 2?", "--temperature", "0", "--max-tokens", "8")),
        Screen(("apps", "ls"), whole=("one_app.py:4",), table=True),
        Screen(("deploy", "run"), ("one",)),
        Screen(("deploy", "ls"), whole=("one", "healthy"), table=True),
        Screen(("deploy", "logs"), ("one", "--tail", "3"), whole=("deploy: one is served at",)),
        Screen(("deploy", "stop"), ("one",)),
        Screen(("deploy", "stop"), ("nope",), code=6, whole=("nope",)),
        Screen(("play",), (url, "--seed", "3", "--model", "tiny-qwen3", "--temperature", "0", "--max-tokens", "8")),
        Screen(("eval", "run"), ("--model", "tiny-qwen3", *run)),
        Screen(("eval", "run"), ("--app-id", "two", "--seeds", "0-3", "--model", "tiny-qwen3"), code=2),
        Screen(("eval", "show"), (evals[0], "--per-seed"), whole=tuple(f"{evals[0]}_e0_{i}" for i in range(4))),
        Screen(("eval", "compare"), (*evals, "--per-seed"), whole=tuple(evals)),
        Screen(("compare",), ("tiny-qwen3", model, *rows, "--rows", "math.jsonl"), whole=("tiny-qwen3", model)),
        Screen(("distil",), ("--teacher", model, *rows, "--prompts", "math.jsonl", "--i-may-train-on-this")),
        Screen(("jobs", "ls"), whole=(*jobs, *models), table=True),
        Screen(("jobs", "get"), (played,), whole=(played, learnt)),
        Screen(("jobs", "get"), (refused,), whole=(refused,)),
        Screen(("jobs", "get"), ("job_nope",), code=6),
        Screen(("jobs", "config"), (played,)),
        Screen(("jobs", "watch"), (played,), whole=(learnt,)),
        Screen(("jobs", "events"), (played,), whole=("rollout.requested", "checkpoint.saved"), table=True),
        Screen(("jobs", "metrics"), (played,), whole=("eval.reward_mean", "tokens_per_second"), table=True),
        Screen(("jobs", "metrics"), (trained, "--plot")),
        Screen(("jobs", "compare"), (trained, played), whole=(trained, played)),
        Screen(("jobs", "checkpoints"), (played,), whole=(step,), table=True),
        Screen(("jobs", "pause"), (played,), code=1),
        Screen(("jobs", "resume"), (played,), code=1),
        Screen(("jobs", "cancel"), (played,), code=1),
        Screen(("jobs", "rm"), ("job_nope", "--yes"), code=6),
        Screen(("rollouts", "ls"), (played,), whole=("t2_0", "e2_1"), table=True),
        Screen(("rollouts", "show"), (played, "t1_0"), whole=(played,)),
        Screen(("traces", "ls"), ("--job", evals[0]), whole=tuple(f"{evals[0]}_e0_{i}" for i in range(4)), table=True),
        Screen(("traces", "show"), (f"{evals[0]}_e0_0",), whole=(f"{evals[0]}_e0_0",)),
        Screen(("traces", "export"), ("traces.jsonl", "--job", evals[0], "--replace")),
        Screen(("filter",), ("--job", evals[1], "--out", "filtered.jsonl"), whole=("filtered.jsonl",)),
        Screen(("filter",), ("--job", evals[0], "--min-reward", "9", "--out", "none.jsonl"), code=1),
        Screen(("files", "upload"), ("math.jsonl",)),
        Screen(("files", "ls"), whole=(file,), table=True),
        Screen(("files", "get"), (file,), whole=(file,)),
        Screen(("files", "rm"), ("file_0",), code=6),
        Screen(("models", "ls"), whole=models, table=True),
        Screen(("models", "known"), whole=("Qwen/Qwen3-235B-A22B-Thinking-2507-FP8",), table=True),
        Screen(("models", "alias"), ("nobody/knows-it", "tiny-qwen3"), code=2, whole=("nobody/knows-it",)),
        Screen(("models", "aliases")),
        Screen(("models", "unalias"), ("nobody/knows-it",), code=2, whole=("nobody/knows-it",)),
        Screen(("models", "download"), (model,)),
        Screen(("models", "rm"), ("rl:nobody:job_nope", "--yes"), code=6),
        Screen(("models", "make", "tiny-qwen3"), code=2, whole=("--replace",)),
        Screen(("models", "make", "tiny-qwen3-vl"), ("--head-dim", "12"), code=2, whole=("--head-dim",)),
        Screen(("config", "check"), (again, "--dataset", "math.jsonl")),
        Screen(("config", "explain"), (again, "--dataset", "math.jsonl"), whole=("hyperparameters.learning_rate",)),
        Screen(("config", "init"), ("sft",)),
        Screen(("config", "schema")),
        Screen(("keys", "ls"), table=True),
        Screen(("import", "openai"), ("--from", "exported"), whole=("ftjob-export",), table=True),
        Screen(("keys", "rotate"), ("key_0",), code=6, whole=("key_0",)),
        Screen(("keys", "revoke"), ("key_0",), code=6, whole=("key_0",)),
        # Nobody has stored one here, so that there is no table.
        Screen(("keys", "judge", "ls")),
        Screen(("keys", "judge", "rm"), ("nope",), code=6, whole=("nope",)),
        Screen(("orgs", "ls"), table=True),
        # Every look adds records of its own, so that no two tables are the same.
        Screen(("audit",)),
        Screen(("limits",), whole=("SYNTH_ORG_FILE_BYTES",)),
        # Nothing has failed so here, so that there is no table.
        Screen(("dead", "ls")),
        Screen(("dead", "show"), ("999999",), code=6, whole=("999999",)),
        Screen(("dead", "retry"), ("999999",), code=6, whole=("999999",)),
        Screen(("dead", "drop"), ("999999",), code=6, whole=("999999",)),
    ]  # fmt: skip


@dataclass(frozen=True)
class Tour:
    """What was shown: of each screen, by look."""

    screens: list[Screen]
    shown: dict[str, list[Shown]]

    def at(self, look: str) -> list[tuple[Screen, Shown]]:
        return list(zip(self.screens, self.shown[look], strict=True))


@pytest.fixture(scope="module")
def tour(platform: Platform, letters_app: Served, rows: object) -> Tour:
    played = screens(platform, letters_app.url)
    asked = [[*screen.words, *screen.arguments] for screen in played]
    return Tour(played, {name: look.at(asked, platform.shell.folder) for name, look in LOOKS.items()})


def test_every_command_is_played_or_left_out_for_a_reason(tour: Tour):
    leaves = {words for words, command in every_command().items() if not hasattr(command, "commands")}
    played = {screen.words for screen in tour.screens}
    assert leaves - played == NOT_PLAYED.keys()
    assert played <= leaves


@pytest.mark.parametrize("look", LOOKS)
def test_a_command_ends_as_it_should_and_shows_every_id_whole(look: str, tour: Tour):
    for screen, shown in tour.at(look):
        assert shown.code == screen.code, (screen, shown.text)
        assert "Traceback" not in shown.text, screen
        if not screen.code or LOOKS[look].columns:
            # Messages do not go through the pipe of the data.
            assert [id for id in screen.whole if not any(id in line for line in shown.lines)] == [], shown.text


@pytest.mark.parametrize("look", [name for name, look in LOOKS.items() if look.columns])
def test_nothing_is_wider_than_the_terminal_and_nothing_is_cut(look: str, tour: Tour):
    columns = LOOKS[look].columns
    assert columns is not None
    for screen, shown in tour.at(look):
        if screen.words not in VERBATIM:
            # In cells: a character of what a model says may have none of its own, or two.
            assert [line for line in shown.lines if cell_len(line) > columns] == [], screen
            assert not CUT.search(shown.text), (screen, shown.text)


@pytest.mark.parametrize("look", [name for name, look in LOOKS.items() if look.columns])
def test_a_table_on_a_terminal_has_what_a_program_gets(look: str, tour: Tour):
    for (screen, shown), piped in zip(tour.at(look), tour.shown["piped"], strict=True):
        if not screen.table:
            continue
        columns, *cells = table_of(piped)
        text, joined = set(shown.text.split()), "".join(shown.text.split())
        # Figures are rounded for people.
        words = {
            word for row in cells for cell in row for word in cell.split() if not re.search(r"\d[.:]?\d|▁|█", word)
        }
        width = LOOKS[look].columns or 0
        # What is wider than a line, such as a path, goes on in the next one.
        missing = {word for word in words - text if len(word) < width - 4 or word not in joined}
        assert missing - {"-"} == set(), (screen, shown.text)
        shown_names = {raw: name for name, raw in RAW_COLUMNS.items()}
        filled = [shown_names.get(c, c) for i, c in enumerate(columns) if i and any(row[i] != "-" for row in cells)]
        if screen.words != ("doctor",):
            assert [name for name in filled if name not in shown.text.lower()] == [], (screen, shown.text)


def test_a_piped_table_has_a_line_of_names_and_raw_values(tour: Tour):
    for screen, shown in tour.at("piped"):
        if not screen.table:
            continue
        columns, *cells = table_of(shown)
        assert cells, screen
        assert [row for row in cells if len(row) != len(columns) or "" in row] == [], screen
        for name, read in RAW.items():
            for row in cells if name in columns else ():
                value = row[columns.index(name)]
                assert value == "-" or read(value) is not None, (screen, value)


def test_colours_are_for_terminals_that_want_them(tour: Tour):
    for screen, shown in tour.at("NO_COLOR"):
        assert not STYLE.search(shown.raw), screen
    for screen, shown in tour.at("piped"):
        assert "\x1b" not in shown.raw, screen
    styled = [screen for screen, shown in tour.at("80") if STYLE.search(shown.raw)]
    assert len(styled) > len(tour.screens) / 2


def table_of(shown: Shown) -> list[list[str]]:
    """The rows of a piped table, its names first."""
    return [line.split("\t") for line in shown.raw.splitlines()]
