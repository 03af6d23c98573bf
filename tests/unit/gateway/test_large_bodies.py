"""The check of a large body: its first errors, and no long value in them."""

from __future__ import annotations

import json

import pytest
from pydantic import BaseModel, ConfigDict

from synth.errors import MOST_PROBLEMS
from synth.gateway.api.large_bodies import find_errors


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    name: str
    tags: dict[str, str] = {}


def test_the_first_errors_of_a_body_are_found_and_all_are_counted():
    errors, count = find_errors(Body, json.dumps({"name": "a", **{f"f{i}": 0 for i in range(5000)}}).encode())
    assert (len(errors), count) == (MOST_PROBLEMS, 5000)
    assert (errors[0]["loc"], errors[0]["type"], errors[0]["input"]) == (("body", "f0"), "extra_forbidden", 0)


def test_an_error_holds_no_long_name_or_value():
    body = {"name": "a", "x" * 10_000: "y" * 10_000, "tags": {"z" * 10_000: ["w" * 10_000]}}
    errors, count = find_errors(Body, json.dumps(body).encode())
    assert count == 2
    assert len(str(errors)) < 2000


@pytest.mark.parametrize("body", [b'{"name": "a"}', b"{", b"[" * 100_000, b"\xff"])
def test_a_good_body_and_one_that_is_no_json_have_no_errors(body: bytes):
    assert find_errors(Body, body) == ([], 0)
