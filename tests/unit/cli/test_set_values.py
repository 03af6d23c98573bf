"""`--set` and `--tag`: what they make of a job file's text, and how a mistake in them is told."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from synth.cli.jobs.set_values import parse_setting, parse_tag, set_values
from synth.console.errors import UsageProblem
from tests.unit.cli.test_command_line import synthctl

RL = (Path(__file__).parents[3] / "configs" / "demo" / "rl.toml").read_text()


def line_of(key: str) -> int:
    """Where a key stands in the demo's file."""
    return next(i for i, line in enumerate(RL.splitlines(), start=1) if line.startswith(f"{key} ="))


def changed(text: str, *sets: str, tags: tuple[str, ...] = ()) -> str:
    settings = [*map(parse_setting, sets), *map(parse_tag, tags)]
    return set_values(text, name="rl.toml", settings=settings)[0]


def test_a_set_key_replaces_the_files_and_the_rest_of_the_text_stays():
    before, after = RL.splitlines(), changed(RL, "training.learning_rate=1e-4").splitlines()
    [(old, new)] = [(a, b) for a, b in zip(before, after, strict=True) if a != b]
    assert (old, new) == ("learning_rate = 2e-4", "learning_rate = 0.0001 # --set")


@pytest.mark.parametrize(
    ("text", "setting"),
    [
        ("", "training.seed=1"),
        ("training.seed = 1\n", "training.lr=2"),
        ("training = {seed = 1}\n", "training.watch.action=stop"),
        ("[a]\nb.c = 1\n[a.b.d]\nx = 1\n", "a.b.e=1"),
        ("[training.watch]\nwindow = 1\n[model]\nbase = 'x'\n", "training.lr=2"),
        ("[[x]]\na = 1\n", "training.lr=2"),
        ("\ufeff[a]\r\nb = 1\r\n", "a.c=2"),
        ("[a]\nb = [\n  1,\n  2,\n]\nc = 3\n", "a.b=[4]"),
        ("[a]\nb = 1\n", 'a."x.y" = 5'),
        ("[a.b]\nc = 1\n", "a.b={d = 1}"),
    ],
)
def test_a_key_is_set_wherever_its_table_stands(text: str, setting: str):
    wanted = tomllib.loads(text.removeprefix("\ufeff"))
    path = tomllib.loads(f"{setting.partition('=')[0]} = 0")
    table, found = wanted, path
    while isinstance(found, dict):
        [(part, found)] = found.items()
        if found == 0:
            table[part] = parse_setting(setting).value
        else:
            table = table.setdefault(part, {})
    assert tomllib.loads(changed(text, setting)) == wanted


def test_values_are_toml_or_text_without_quotes():
    sets = ("a.float=1e-5", "a.bool=true", "a.list=[1]", "a.range=0-99", "a.name=two words", "a.empty=''", "a.f=x=y")
    data = tomllib.loads(changed("", *sets))
    wanted = {
        "float": 1e-5,
        "bool": True,
        "list": [1],
        "range": "0-99",
        "name": "two words",
        "empty": "",
        "f": "x=y",
    }
    assert data == {"a": wanted}


def test_the_last_of_two_wins():
    assert tomllib.loads(changed("", "a.b=1", "a.b=2")) == {"a": {"b": 2}}


def test_a_tag_is_text_in_the_table_that_the_kind_of_job_reads():
    assert tomllib.loads(changed("", tags=("run=7", "a.b=c=d")))["tags"] == {"run": "7", "a.b": "c=d"}
    evaluation = changed('[eval]\nmodel = "m"\n[eval.tags]\nrun = 1\n', tags=("run=7",))
    assert tomllib.loads(evaluation)["eval"]["tags"] == {"run": "7"}


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("training.seed", "there is no ="),
        ("=1", "there is no key"),
        ("a=", "an empty text is ''"),
        ("a b=1", "this is no key"),
        ("a=[1,", "not valid TOML"),
        ("training.seed.x=1", f"rl.toml:{line_of('seed')} [training].seed is a value"),
    ],
)
def test_what_cannot_be_set_is_refused(setting: str, said: str):
    with pytest.raises(UsageProblem) as refused:
        changed(RL, setting)
    assert said in str(refused.value)


def test_a_problem_names_the_flag_and_other_problems_the_line_in_the_users_file(tmp_path: Path):
    (tmp_path / "rl.toml").write_text(RL.replace("async_level = 0 ", "async_levl = 0 "))
    flags = ("--set", "training.learning_rat=1", "--set", "model.trainer_mode=half", "--set", "lora.r=4")
    run = synthctl("config", "check", "rl.toml", *flags, cwd=tmp_path)
    assert run.returncode == 2
    errors = [line for line in run.stderr.splitlines() if line.startswith("error: ")]
    assert errors == [
        f"error: rl.toml:{line_of('async_level')} [training].async_levl: unknown key 'async_levl'",
        "error: --set training.learning_rat: unknown key 'learning_rat'",
        "error: --set model.trainer_mode: trainer_mode = 'half' is not valid",
    ]


def test_explain_says_which_flag_a_value_came_from(tmp_path: Path):
    (tmp_path / "rl.toml").write_text(RL)
    run = synthctl("config", "explain", "rl.toml", "--set", "training.seed=5", cwd=tmp_path)
    assert "training.seed\t5\t--set training.seed\t-" in run.stdout.splitlines()
