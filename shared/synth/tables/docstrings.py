"""The texts below the fields of a class, which Python does not keep."""

from __future__ import annotations

import ast
import inspect
import textwrap


def attribute_docstrings(cls: type) -> dict[str, str]:
    """Return the text below each field of a class, by field."""
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(body, ast.ClassDef)
    texts: dict[str, str] = {}
    for field, text in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
            texts[field.target.id] = inspect.cleandoc(ast.literal_eval(text.value))
    return texts
