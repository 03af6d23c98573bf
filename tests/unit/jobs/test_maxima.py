"""A job file of any content is read in a time that its size bounds, and what it names has a size."""

from __future__ import annotations

import pytest

from synth.errors import Problem, UserError
from synth.jobs.parse.toml import read_toml
from synth.jobs.parse.validate import parse_job, parse_leniently

pytestmark = pytest.mark.timeout(20)

SIZE = 250_000


def problems_of(text: str) -> list[Problem]:
    with pytest.raises(UserError) as caught:
        parse_job(read_toml(text, name="x.toml"), kind="rl")
    return caught.value.problems


@pytest.mark.parametrize(
    ("table", "element"), [("[rollout]\nops", '""'), ("[judge]\njudges", "{}"), ("[data]\ncurriculum", "1")]
)
def test_a_list_of_wrong_elements_costs_what_it_is_long(table: str, element: str):
    found = problems_of(f"{table} = [{f'{element},' * (SIZE // (len(element) + 1))}]\n")
    assert len(found) < 1500


def test_a_message_of_the_parser_is_read_in_linear_time():
    key = " " * (SIZE // 2)
    [problem] = problems_of(f'a = {{"{key}"=1, "{key}"=1}}')
    assert "duplicate inline table key" in problem.what


def test_the_lines_of_a_long_file_are_counted_once():
    text = "[tags]\n" + "".join(f"a{nth}=1\n" for nth in range(SIZE // 8))
    document = read_toml(text, name="x.toml")
    assert document.where(("tags", "a30000")) == "x.toml:30002 [tags].a30000"


@pytest.mark.parametrize("nested", ["[" * 70 + "]" * 70, "{a=" * 70 + "1" + "}" * 70, "[" * 5000 + "]" * 5000])
def test_what_is_nested_too_deeply_is_refused_by_name(nested: str):
    [problem] = problems_of(f"[rollout.env_config]\nx = {nested}\n")
    assert "nested" in problem.what


@pytest.mark.parametrize(
    ("text", "where"),
    [
        (f'[model]\nbase = "{"m" * 5000}"\n', "[model].base"),
        ("[rollout]\nmax_turns = 9000000000000000000\n", "[rollout].max_turns"),
        ("[rollout]\nrollout_timeout_s = 1e300\n", "[rollout].rollout_timeout_s"),
        ("[rollout]\nops = [" + '"agent",' * 1001 + "]\n", "[rollout].ops"),
        (f'[tags]\nnote = "{"n" * 20_000}"\n', "[tags]"),
        ("[tags]\n" + "".join(f"tag{nth} = 1\n" for nth in range(10_000)), "[tags]"),
    ],
)
def test_every_value_has_a_largest(text: str, where: str):
    found = [problem for problem in problems_of(text) if where in problem.where]
    assert found, problems_of(text)


def test_a_seed_may_be_any_whole_number():
    parsed, problems = parse_leniently(read_toml("[training]\nseed = 9007199254740991\n", name="x.toml"), kind="rl")
    assert parsed is not None
    assert not [problem for problem in problems if "seed" in problem.where]
