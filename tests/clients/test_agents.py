"""Every generation of the openai SDK plays rollouts, wherever its user puts the credential, and is refused in words.

What docs/agents.md says of them is played here.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from synth.taskapp.sdk import Episode, TaskApp
from tests.clients.attached import Agent, agent_of
from tests.clients.conftest import BASE, ENVIRONMENT_KEY, venv_of
from tests.e2e.platform import Platform
from tests.e2e.task_apps import served

pytestmark = pytest.mark.timeout(1200)

VERSIONS = {"openai-1": "1.", "openai-2": "2.", "openai": "3."}
#: Where the credential stands, by what the agent's user sets.
PLACES = {
    "key": lambda url, ep: {"base_url": ep.base_url, "api_key": ep.api_key},
    "query": lambda url, ep: {"base_url": ep.url, "api_key": "any"},
    "path": lambda url, ep: {"base_url": f"{url}/rollouts/{ep.api_key}/v1", "api_key": "any"},
    "shared": lambda url, ep: {"base_url": ep.base_url, "api_key": ep.api_key, "shared": True},
    "environment": lambda url, ep: {"env": {"OPENAI_BASE_URL": ep.base_url, "OPENAI_API_KEY": ep.api_key}},
}
CASES = [
    *product(PLACES, ("sync", "async"), (False, True), ("chat",)),
    *product(("key", "query", "path"), ("sync",), (False, True), ("responses",)),
]


class Played:
    """The rollouts that one client has played, by the number of the case, and the credentials that they had."""

    def __init__(self, platform: Platform, agent: Agent) -> None:
        self.agent = agent
        self.got: dict[int, dict[str, Any]] = {}
        self.credentials: dict[int, tuple[str, str]] = {}
        self._lock = threading.Lock()
        app = TaskApp("agents", name="Agents", description="Two turns.", max_turns=2, keys=[ENVIRONMENT_KEY])

        @app.episode
        def play(ep: Episode) -> None:
            where, kind, streamed, api = CASES[ep.seed]
            root = ep.base_url.removesuffix("/v1")
            got = agent.ask(**PLACES[where](root, ep), kind=kind, streamed=streamed, api=api)
            with self._lock:
                self.got[ep.seed] = got
                self.credentials[ep.seed] = (ep.base_url, ep.api_key)
            ep.step(obs=got, reward=float("said" in got), done=True)

        with served(app) as running:
            flags = ("--seeds", f"0-{len(CASES) - 1}", "--task-url", running.url, "--env-name", "agents")
            self.job = platform.shell.ok(
                "eval", "--model", BASE, *flags, "--max-tokens", "8", "--detach", timeout=120
            ).strip()
            self.ended = platform.succeeded(self.job)


@pytest.fixture(scope="module", params=VERSIONS)
def played(request: pytest.FixtureRequest, platform: Platform) -> Iterator[Played]:
    with agent_of(venv_of(request.param)) as agent:
        played = Played(platform, agent)
        assert played.got[0]["version"].startswith(VERSIONS[request.param])
        yield played


def test_a_rollout_is_played_wherever_the_credential_stands_sync_and_async_whole_and_streamed(
    played: Played, platform: Platform
):
    assert len(played.got) == len(CASES)
    for number, got in played.got.items():
        assert len(got.get("said", [])) == 2, (CASES[number], got)
    # A rollout without a recorded call of the model would have failed.
    assert played.ended["rollouts"] == {"completed": len(CASES), "failed": 0}
    assert played.ended["eval"]["reward_mean"] == 1.0


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_credential_that_does_not_open_is_an_authentication_error_that_says_what_to_do(
    played: Played, kind: str, streamed: bool
):
    base_url, ended = played.credentials[0]
    mangled = ended[:-1] + ("0" if ended[-1] != "0" else "1")
    other = played.credentials[1][1]
    for api_key, address, said in (
        (ended, base_url, "this rollout is over"),
        (mangled, base_url, "it was changed on the way"),
        (other, f"{base_url.removesuffix('/v1')}/rollouts/{ended}/v1", "credentials of two rollouts"),
    ):
        got = played.agent.ask(base_url=address, api_key=api_key, kind=kind, streamed=streamed)
        assert got.get("error") == "AuthenticationError", got
        assert said in got["message"]
        assert "`ep.base_url` and `ep.api_key`" in got["message"]
