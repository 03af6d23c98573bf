"""Check whether a source could grade, without running any of it."""

from __future__ import annotations

import ast


def source_wrong(source: str) -> str:
    """Return why a source is not a grader; "" if it has a function `grade` of two arguments."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError) as error:
        return f"the source is not Python: {error}"
    except (RecursionError, MemoryError):
        return "the source is nested too deeply to be read"
    for node in tree.body:
        if isinstance(node, ast.AsyncFunctionDef) and node.name == "grade":
            return "grade is async, and is called without an event loop"
        if isinstance(node, ast.FunctionDef) and node.name == "grade":
            signature = node.args
            positional = len(signature.posonlyargs) + len(signature.args)
            needed = positional - len(signature.defaults)
            required = [
                arg for arg, value in zip(signature.kwonlyargs, signature.kw_defaults, strict=True) if value is None
            ]
            if required or needed > 2 or (positional < 2 and signature.vararg is None):
                return "grade is not called with (sample, item)"
            return ""
    return "the source defines no grade(sample, item)"
