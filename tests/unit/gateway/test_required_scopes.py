"""The scope that a request requires follows from its method and path, with or without a slash at the end."""

from __future__ import annotations

import pytest

from synth.access import Scope
from synth.gateway.auth import required_scopes
from synth.gateway.chat_proxy.paths import CALL_PATHS, is_model_call


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", *CALL_PATHS])
def test_every_chat_path_requires_inference(path: str) -> None:
    assert required_scopes("POST", path) == (Scope.INFERENCE,)


@pytest.mark.parametrize("name", ["responses", "x/responses", "v1/responses", "chat/completions"])
def test_a_name_that_ends_as_a_chat_path_changes_no_scope(name: str) -> None:
    for prefix in ("/api/judge-keys", "/api/models", "/v1/models", "/api/keys", "/api/environment-keys"):
        assert required_scopes("DELETE", f"{prefix}/{name}") == required_scopes("DELETE", f"{prefix}/x")
        assert not is_model_call("POST", f"{prefix}/{name}")


@pytest.mark.parametrize("slash", ["", "/"])
def test_a_slash_changes_no_scope(slash: str) -> None:
    assert required_scopes("POST", f"/api/environment-keys{slash}") == (Scope.WRITE,)
    assert required_scopes("POST", f"/api/judge/v1/score{slash}") == (Scope.WRITE, Scope.INFERENCE)
    assert required_scopes("POST", f"/api/keys{slash}") == (Scope.KEYS,)
    assert required_scopes("DELETE", f"/api/organisations/o{slash}") == (Scope.OPERATOR,)
    assert required_scopes("POST", f"/v1/files{slash}") == (Scope.WRITE,)
    assert required_scopes("GET", f"/v1/models{slash}") == (Scope.READ,)
    assert required_scopes("GET", "/v1/") == (Scope.READ,)
