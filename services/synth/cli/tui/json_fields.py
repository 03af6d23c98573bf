"""The fields of the API's answers that `-o json` prints. Programs read them, so names and places do not change."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from synth.api.schemas import Checkpoint, File, JobWithConfig, Key, MadeKey, Model
from synth.events import LineProblem

#: The printed fields of each type that is not printed whole, in their order.
_FIELDS: dict[type, str] = {
    JobWithConfig: "id state kind name label source_model stand_in model step provisional_step steps attempt "
    "created_at updated_at started_at ended_at code problems warnings warned waiting values rollouts judge eval tags "
    "config resolved origins last_seq reason verdict times linked_job_id",
    File: "id status filename purpose bytes sha256 rows messages characters tokens lengths images pairs prompts "
    "unanswered converted annotations bad_lines problems created_at",
    LineProblem: "line reason path",
    Model: "id kind base stand_in job_id step created_at",
    Checkpoint: "model step bytes created_at values",
    Key: "id name state scopes created_at created_by expires_at revoked_at",
    MadeKey: "id name state scopes created_at created_by expires_at revoked_at key",
}


def to_json_data(data: Any) -> Any:
    """Convert to values that JSON has: of the types above their fields, of any other struct all."""
    if isinstance(data, dict):
        return {key: to_json_data(value) for key, value in cast(dict[str, Any], data).items()}
    if isinstance(data, list | tuple):
        return [to_json_data(item) for item in cast(list[Any], data)]
    if isinstance(data, msgspec.Struct):
        named = _FIELDS.get(type(data))
        fields = data.__struct_fields__ if named is None else named.split()
        return {name: to_json_data(getattr(data, name)) for name in fields}
    return msgspec.to_builtins(data)
