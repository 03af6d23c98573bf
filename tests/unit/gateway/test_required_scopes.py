"""The scope that a request requires follows from its method and path, with or without a slash at the end.

A key without that scope is refused, and the refusal names it.
"""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from synth.access import Scope
from synth.bus.kv.secrets import ApiKey
from synth.gateway.auth import require_scope, required_scopes
from synth.gateway.chat_proxy.paths import CALL_PATHS, is_model_call
from synth.gateway.errors import ApiError
from synth.ids import OrgId


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


def test_a_key_needs_every_scope_that_a_request_requires() -> None:
    made = {"digest": "", "name": "", "created_at": datetime.now(UTC), "created_by": "key_0"}
    caller = ApiKey(key_id="key_1", org=OrgId("org_1"), scopes=(Scope.READ, Scope.WRITE), **made)
    require_scope(caller, Scope.READ, Scope.WRITE)
    with pytest.raises(ApiError, match="lacks the scope inference; it has read, write") as refused:
        require_scope(caller, Scope.WRITE, Scope.INFERENCE)
    assert refused.value.status == 403
