"""Job files that are not TOML: each mistake with its line, its column and its fix."""

from __future__ import annotations

from pathlib import Path

import pytest

from synth.models import Registry
from tests.unit.jobs.test_job_files import problems


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    (tmp_path / "tiny-qwen3").mkdir()
    (tmp_path / "tiny-qwen3" / "config.json").write_text('{"model_type": "qwen3"}')
    return Registry(tmp_path)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ('x = "\\q"\n', 1, "unescaped"),
        ("x = [1, nope]\n", 1, "invalid"),
        ("x = [1, 2]]\n", 1, "expected newline"),
    ],
)
def test_text_that_is_no_toml_is_refused_with_its_line(text: str, line: int, words: str, registry: Registry) -> None:
    (problem,) = problems(text, registry)
    assert problem.where == f"job.toml:{line}"
    assert "not valid TOML" in problem.what
    assert words.lower() in problem.what.lower()


@pytest.mark.parametrize(
    ("text", "bracket", "line", "column", "closing"),
    [
        ("[model\nbase = 1\n", "[", 1, 1, "]"),
        ("a = 1\n  [[set]\nbase = 1\n", "[", 2, 3, "]]"),
        ("x = [1,\n2,", "[", 1, 5, "]"),
        ("[data]\nseeds = [0, 1  # ]\n\nlr = 3\n[training]\ny = [1]\n", "[", 2, 9, "]"),
        ('x = [[1, "]"], [2, 3\ny = 1\n', "[", 1, 16, "]"),
        ('x = """\n[\n"""\ny = {a = [1, 2}\n', "[", 4, 10, "]"),
    ],
)
def test_a_bracket_that_is_not_closed_is_named_with_its_line_and_column(
    text: str, bracket: str, line: int, column: int, closing: str, registry: Registry
) -> None:
    (problem,) = problems(text, registry)
    assert problem.what.startswith(f"the {bracket!r} at line {line}, column {column} is not closed: `")
    assert (problem.expected, problem.where) == (f"{closing!r} at its end", f"job.toml:{line}")


@pytest.mark.parametrize(
    ("text", "line", "column", "end"),
    [
        ('[model]\nbase = "a\n', 2, 8, """'"' at its end, on the same line"""),
        ("a = ['x\n']\n", 1, 6, '"\'" at its end, on the same line'),
        ('a = 1\nb = """x\ny', 2, 5, """'\"\"\"' at its end"""),
        ('a = "x', 1, 5, """'"' at its end, on the same line"""),
    ],
)
def test_a_text_that_is_not_closed_is_named_with_its_line_and_column(
    text: str, line: int, column: int, end: str, registry: Registry
) -> None:
    (problem,) = problems(text, registry)
    assert problem.what.startswith(f"the text at line {line}, column {column} is not closed: `")
    assert (problem.expected, problem.where) == (end, f"job.toml:{line}")


@pytest.mark.parametrize(
    ("text", "what", "where"),
    [
        ("a = 1\n[b]\nc = 1\nc = 2\n", "`c = 2` repeats line 3", "job.toml:4"),
        ("[b]\nc = 1\n[d]\n[b]  # again\n", "`[b]  # again` repeats line 1", "job.toml:4"),
        ("[a]\nx = 1\n[a.x]\ny = 2\n", "`[a.x]` repeats line 2", "job.toml:3"),
        ("[[b]]\n[b]\n", "`[b]` repeats line 1", "job.toml:2"),
    ],
)
def test_what_is_there_twice_is_named_with_its_first_line(text: str, what: str, where: str, registry: Registry) -> None:
    (problem,) = problems(text, registry)
    assert (problem.what, problem.where) == (what, where)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("base = tiny-qwen3  # mine", 'base = "tiny-qwen3"'),
        ("url = http://127.0.0.1:8001", 'url = "http://127.0.0.1:8001"'),
        ("shuffle = True", "shuffle = true"),
        ("model = None", "model with a value, or no line for it"),
        ("base: tiny-qwen3", 'base = "tiny-qwen3"'),
        ("rate: 1e-5", "rate = 1e-5"),
    ],
)
def test_a_line_that_is_nearly_toml_is_shown_as_it_should_be(line: str, expected: str, registry: Registry) -> None:
    (problem,) = problems(f"[model]\n{line}\n", registry)
    assert (problem.expected, problem.where) == (expected, "job.toml:2")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('{"model": 1}', "this is JSON, not TOML: `{"),
        ("# a job\n\n{\n", "this is JSON, not TOML: `{"),
        ("---\na: 1\n", "this is YAML, not TOML: `---`"),
        ("model:\n  base: a\n", "this is YAML, not TOML: `model:`"),
        ("[a]\n{\n", "not valid TOML"),
    ],
)
def test_another_format_is_named(text: str, what: str, registry: Registry) -> None:
    (problem,) = problems(text, registry)
    assert problem.what.startswith(what)


@pytest.mark.parametrize("rest", ["\n", "\n  b = 2,\n}\n", "\n[training]\n"])
def test_a_table_in_braces_ends_on_its_line(rest: str, registry: Registry) -> None:
    (problem,) = problems(f"[model]\nbase = {{a = 1,{rest}", registry)
    assert problem.what == "the '{' at line 2, column 8 is not closed on its line: `base = {a = 1,`"
    assert problem.expected == "'}' on the same line, or a [table] in its place"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"[model]\nbase = '\xff'\n", "not UTF-8"),
        (b"a = " + b"[" * 5000 + b"]" * 5000, "nested too deeply"),
        (b"a = " + b"9" * 5000, "not valid TOML"),
        (b"[hyperparameters]\nlearning_rate = nan\n", "not a finite number"),
        (b"[hyperparameters]\nseed = 99999999999999999999\n", "64 bits"),
    ],
)
def test_what_python_cannot_read_is_one_clear_problem(text: bytes, words: str, registry: Registry) -> None:
    (problem,) = problems(text, registry)
    assert words in problem.what
    assert problem.where.startswith("job.toml")
