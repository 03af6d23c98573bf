"""Formulas over the scores of graders: numbers, names, + - * / ^, and a few functions. Their writers are not trusted.

A formula is read as Python, of which everything but the nodes below is refused. Every number is a float, so that no
power grows without bound; no formula repeats anything, so that its length bounds its time.
"""

from __future__ import annotations

import ast
import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

#: Characters of a formula.
MAX_FORMULA = 4096
_BINARY: dict[type[ast.operator], Callable[[float, float], Any]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
    # A root of a negative number is complex.
    ast.Pow: lambda a, b: a**b,
}
_UNARY: dict[type[ast.unaryop], Callable[[float], float]] = {
    ast.UAdd: lambda a: a,
    ast.USub: lambda a: -a,
}
#: Each with the fewest and the most numbers that it takes.
_FUNCTIONS: dict[str, tuple[Callable[..., Any], int, int]] = {
    "min": (min, 2, MAX_FORMULA),
    "max": (max, 2, MAX_FORMULA),
    "abs": (abs, 1, 1),
    "floor": (math.floor, 1, 1),
    "ceil": (math.ceil, 1, 1),
    "exp": (math.exp, 1, 1),
    "sqrt": (math.sqrt, 1, 1),
    "log": (math.log, 1, 1),
}
_EXPECTED = f"numbers, the names of graders, + - * / ^, parentheses, and {', '.join(_FUNCTIONS)}"


class FormulaWrong(Exception):
    """A formula that cannot be read."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.expected = _EXPECTED


class NoNumber(Exception):
    """A formula has no finite value for these scores."""


@dataclass(frozen=True)
class Formula:
    """A formula that was read. names: of the graders that it uses."""

    text: str
    root: ast.expr
    names: frozenset[str]


@functools.lru_cache(maxsize=256)
def parse_formula(text: str) -> Formula:
    """Read a formula. Raises `FormulaWrong`."""
    if len(text) > MAX_FORMULA:
        raise FormulaWrong(f"the formula has {len(text)} characters; at most {MAX_FORMULA}")
    try:
        # A formula has no texts, so that every ^ is the power.
        root = ast.parse(text.strip().replace("^", "**"), mode="eval").body
        names: set[str] = set()
        _check(root, names)
    except (SyntaxError, ValueError) as error:
        raise FormulaWrong(f"the formula cannot be read: {error}") from error
    except (RecursionError, MemoryError) as error:
        raise FormulaWrong("the formula is nested too deeply") from error
    return Formula(text, root, frozenset(names))


def evaluate(formula: Formula, scores: Mapping[str, float]) -> float:
    """Compute a formula, a finite number. Raises `NoNumber`, for example for a division by zero."""
    try:
        value = _evaluate(formula.root, scores)
    except (ArithmeticError, ValueError) as error:
        raise NoNumber(f"{formula.text[:120]!r} has no value for {_shown(scores)}: {error}") from error
    if not math.isfinite(value):
        raise NoNumber(f"{formula.text[:120]!r} is {value} for {_shown(scores)}")
    return value


def _check(node: ast.expr, names: set[str]) -> None:
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            try:
                float(value)
            except OverflowError as error:
                raise FormulaWrong("a number is too large") from error
        case ast.Name(id=name):
            names.add(name)
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _UNARY:
            _check(operand, names)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            _check(left, names)
            _check(right, names)
        case ast.Call(func=ast.Name(id=called), args=given, keywords=[]) if called in _FUNCTIONS:
            _, fewest, most = _FUNCTIONS[called]
            if not fewest <= len(given) <= most:
                raise FormulaWrong(f"{called} takes {fewest}{' or more' if most > fewest else ''}, not {len(given)}")
            for each in given:
                _check(each, names)
        case _:
            raise FormulaWrong(f"{ast.unparse(node)[:80]!r} is nothing that a formula may have")


def _evaluate(node: ast.expr, scores: Mapping[str, float]) -> float:
    match node:
        case ast.Constant(value=int() | float() as value):
            return float(value)
        case ast.Name(id=name):
            return scores[name]
        case ast.UnaryOp(op=op, operand=operand):
            return _UNARY[type(op)](_evaluate(operand, scores))
        case ast.BinOp(left=left, op=op, right=right):
            result = _BINARY[type(op)](_evaluate(left, scores), _evaluate(right, scores))
            if isinstance(result, complex):
                raise ValueError("a power of a negative number")
            return float(result)
        case ast.Call(func=ast.Name(id=called), args=arguments):
            return float(_FUNCTIONS[called][0](*(_evaluate(each, scores) for each in arguments)))
        case _:
            raise AssertionError("a formula that was read has no other nodes")


def _shown(scores: Mapping[str, float]) -> str:
    return ", ".join(f"{name} = {score:g}" for name, score in scores.items())[:200]
