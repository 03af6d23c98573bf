"""How often a comparison sees a difference where there is none, and finds one that is there."""

from __future__ import annotations

import random

from synth.cli.comparison.paired import Measured, against_first, verdict

ROWS, REPEATS = 500, 200


def shows_a_difference(first: dict[int, float], other: dict[int, float]) -> str:
    [_, difference] = against_first([Measured("a", first), Measured("b", other)])
    text = verdict(difference, first="A", other="B", unit="row")
    return text[0] if " is better: " in text else "-"


def replies(generator: random.Random, difficulty: list[float]) -> dict[int, float]:
    """Sample whether each row is answered correctly."""
    return {row: float(generator.random() < chance) for row, chance in enumerate(difficulty)}


def test_a_model_compared_with_itself_differs_in_at_most_one_of_twenty_comparisons():
    generator = random.Random(0)
    difficulty = [generator.betavariate(0.5, 0.5) for _ in range(ROWS)]
    shown = [shows_a_difference(replies(generator, difficulty), replies(generator, difficulty)) for _ in range(REPEATS)]
    assert sum(letter != "-" for letter in shown) <= REPEATS * 0.05


def test_a_model_that_is_five_points_better_on_500_rows_is_found_in_nine_of_ten():
    generator = random.Random(0)
    shown: list[str] = []
    for _ in range(REPEATS):
        # It corrects eight rows of a hundred, and loses three.
        draws = [generator.random() for _ in range(ROWS)]
        first = {row: float(draw < 0.68) for row, draw in enumerate(draws)}
        other = {
            row: 1.0 if 0.68 <= draw < 0.76 else 0.0 if draw < 0.03 else first[row] for row, draw in enumerate(draws)
        }
        shown.append(shows_a_difference(first, other))
    assert shown.count("B") >= REPEATS * 0.9
    assert "A" not in shown


def test_models_that_agree_on_every_row_are_equal():
    scores = {row: float(row % 2) for row in range(10)}
    [_, difference] = against_first([Measured("a", scores), Measured("b", scores)])
    assert verdict(difference, first="A", other="B", unit="row") == "A and B are equal on every row"
