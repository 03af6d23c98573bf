"""A query parameter that a route does not read is refused: a filter with a typo must not list everything."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from synth.gateway.app import describe_api

API = describe_api()
ROUTES = {
    path: [p["name"] for p in operations["get"].get("parameters", []) if p["in"] == "query"]
    for path, operations in API.openapi()["paths"].items()
    if "get" in operations
}


async def get(path: str, **params: str) -> httpx.Response:
    # No gateway is behind the routes: a request that passes the check fails later.
    transport = httpx.ASGITransport(API, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        return await http.get(path.replace("{", "").replace("}", ""), params=params)


@pytest.mark.parametrize("path", ROUTES)
async def test_every_route_refuses_a_parameter_that_it_does_not_have(path: str):
    reply = await get(path, colour="red")
    assert reply.status_code == 400
    error: dict[str, Any] = reply.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request", "colour")
    (problem,) = error["problems"]
    assert problem["what"] == "there is no query parameter 'colour' here"
    assert problem["expected"] == (", ".join(ROUTES[path]) or "none")
    for name in ROUTES[path]:
        assert "no query parameter" not in (await get(path, **{name: "1"})).text


@pytest.mark.parametrize(
    ("path", "name", "near"),
    [
        ("/api/jobs", "stat", "state"),
        ("/api/jobs", "Limit", "limit"),
        ("/api/v1/files", "purposes", "purpose"),
        ("/api/traces", "min_rewards", "min_reward"),
        ("/api/api/learning/jobs", "created_afer", "created_after"),
        ("/api/sft/jobs/job_1/metrics", "after_steps", "after_step"),
        ("/v1/fine_tuning/jobs", "metdata", "metadata"),
        ("/api/v1/fine_tuning/jobs", "afters", "after"),
        ("/v1/files", "orders", "order"),
    ],
)
async def test_the_nearest_parameter_is_named(path: str, name: str, near: str):
    reply = await get(path, **{name: "1"})
    assert reply.status_code == 400
    assert f"did you mean {near!r}?" in reply.json()["error"]["message"]


async def test_pairs_of_metadata_are_parameters_of_their_own_route_only():
    assert "no query parameter" not in (await get("/v1/fine_tuning/jobs", **{"metadata[a]": "b"})).text
    assert (await get("/v1/files", **{"metadata[a]": "b"})).status_code == 400
    assert (await get("/v1/fine_tuning/jobs", **{"limit[a]": "b"})).status_code == 400


async def test_many_unknown_parameters_have_a_short_answer():
    reply = await get("/api/jobs", **{f"{'x' * 100}{n}": "1" for n in range(100)})
    assert reply.status_code == 400
    assert len(reply.json()["error"]["problems"]) == 10
    assert len(reply.content) < 8000
