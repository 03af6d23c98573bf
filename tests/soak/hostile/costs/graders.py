"""Graders that cost much for one request, at the limits of the settings."""

from __future__ import annotations

import random
from typing import Any, get_args

from synth.gateway.settings import GatewaySettings
from synth.graders.schema import MAX_GRADERS, MAX_SOURCE_BYTES, Metric

_SETTINGS = GatewaySettings()
_AROUND = 4096

Case = tuple[str, dict[str, Any]]
"""What costs, and the body of `graders/run`; its grader alone is that of `graders/validate`."""


def grader_bodies(rng: random.Random) -> list[Case]:
    """Graders of each type with the longest texts, the most parts and the widest items."""
    size, values = _SETTINGS.max_json_bytes - _AROUND, _SETTINGS.max_json_values - 100
    half = "ab " * (_SETTINGS.max_graded_characters // 6)
    words = " ".join(f"{rng.randrange(1 << 20):x}" for _ in range(len(half) // 7))
    check = {"type": "string_check", "name": "a", "operation": "eq", "input": "{{sample.output_text}}"}
    similar = {"type": "text_similarity", "name": "a", "input": "{{sample.output_text}}", "reference": words}
    equal = {**check, "reference": "4"}
    message = {"role": "user", "content": "{{sample.output_text}}"}
    score = {"type": "score_model", "name": "a", "model": "m", "range": [0.0, 1.0]}
    metrics: tuple[str, ...] = get_args(Metric)
    compared: list[Case] = [
        (metric, {"grader": {**similar, "evaluation_metric": metric}, "model_sample": half}) for metric in metrics
    ]

    def multi(part: dict[str, Any], formula: str) -> dict[str, Any]:
        graders = {f"g{i}": part for i in range(MAX_GRADERS)}
        return {"type": "multi", "name": "m", "graders": graders, "calculate_output": formula}

    every = " + ".join(f"g{i}" for i in range(MAX_GRADERS))
    fuzzy = {**similar, "reference": "{{item.a}}", "evaluation_metric": "fuzzy_match"}
    return [
        *compared,
        ("long texts", {"grader": {**check, "reference": "x" * size}, "model_sample": "4"}),
        ("a long sample", {"grader": {**check, "operation": "ilike", "reference": "a"}, "model_sample": "x" * size}),
        ("templates", {"grader": {**check, "reference": "{{item.a}}" * (size // 10)}, "model_sample": "4"}),
        ("braces", {"grader": {**check, "reference": "{{" * (size // 2)}, "model_sample": "4"}),
        ("a long path", {"grader": {**check, "reference": "{{item" + ".a" * (size // 2) + "}}"}, "model_sample": "4"}),
        ("a wide item", {"grader": equal, "model_sample": "4", "item": {"a": [0] * values}}),
        ("an item of lists", {"grader": equal, "model_sample": "4", "item": {"a": [[]] * (values // 2 - 50)}}),
        (
            "an item of keys",
            {"grader": equal, "model_sample": "4", "item": dict.fromkeys(map(str, range(values // 2)))},
        ),
        ("tools", {"grader": equal, "model_sample": "4", "sample_tools": [{"a": 0}] * (values // 3)}),
        ("multi", {"grader": multi(fuzzy, every), "model_sample": half, "item": {"a": words}}),
        ("a long formula", {"grader": multi(equal, every + " + g0" * (size // 5)), "model_sample": "4"}),
        ("a deep formula", {"grader": multi(equal, "(" * (size // 3) + "g0" + ")" * (size // 3)), "model_sample": "4"}),
        ("powers", {"grader": multi(equal, "g0" + "**9" * (size // 4)), "model_sample": "4"}),
        (
            "many graders",
            {
                "grader": {**multi(equal, "g0"), "graders": {f"g{i}": {} for i in range(values // 4)}},
                "model_sample": "4",
            },
        ),
        ("messages", {"grader": {**score, "input": [message] * (values // 6)}, "model_sample": "4"}),
        ("unknown fields", {"grader": {**equal, **{f"f{i}": 0 for i in range(values // 3)}}, "model_sample": "4"}),
        ("many problems", {"grader": {**score, "input": [{"role": "x"}] * (values // 3)}, "model_sample": "4"}),
    ]


def python_bodies(rng: random.Random) -> list[Case]:
    """Graders with code: sources that cost the parser, code that costs the sandbox."""
    values = _SETTINGS.max_json_values - 100
    size, above = MAX_SOURCE_BYTES - 1024, _SETTINGS.max_json_bytes - _AROUND
    grade, salt = "def grade(sample, item):\n    return 1.0\n", f"# {rng.random()}\n"
    sources = {
        "a large source": "a = [" + "0," * (size // 2) + "]\n",
        "deep parentheses": "a = " + "(" * (size // 3) + ")" * (size // 3) + "\n",
        "deep operators": "a = " + "-" * (size // 2) + "1\n",
        "many functions": "def f(): pass\n" * (size // 15),
        "a long text": "a = '" + "x" * size + "'\n",
        "no Python": "(" * size,
        "too large a source": "a = [" + "0," * (above // 2) + "]\n",
    }
    running = {
        "a loop": "def grade(sample, item):\n    while True: pass\n",
        "memory": "def grade(sample, item):\n    return len('x' * (1 << 40))\n",
        "output": "def grade(sample, item):\n    while True: print('x' * 100000)\n",
        "processes": "import os\ndef grade(sample, item):\n    while True: os.fork()\n",
        "a wide score": "def grade(sample, item):\n    return [[]] * 10_000_000\n",
    }
    python = {"type": "python", "name": "a"}
    bodies: dict[str, dict[str, Any]] = {
        name: {"grader": {**python, "source": salt + text + grade}} for name, text in sources.items()
    }
    bodies |= {name: {"grader": {**python, "source": salt + text}} for name, text in running.items()}
    part = {**python, "source": f"{salt}a = [{'0,' * (above // MAX_GRADERS // 2 - 200)}]\n{grade}"}
    graders = {f"g{i}": part for i in range(MAX_GRADERS)}
    bodies["many sources"] = {"grader": {"type": "multi", "graders": graders, "calculate_output": "g0"}}
    bodies["a wide item"] = {"grader": {**python, "source": salt + grade}, "item": {"a": [[]] * (values // 2 - 50)}}
    return [(name, {**body, "model_sample": "4"}) for name, body in bodies.items()]
