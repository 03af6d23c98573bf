"""Every generated document, page with generated tables and list, by its name in docs/."""

from __future__ import annotations

import json
from collections.abc import Callable

from contracts.asyncapi import asyncapi
from contracts.config_pages import configs_page, setting_names, settings_page
from contracts.event_page import events_page
from contracts.memory_tables import gpu_page
from contracts.sdk_page import client_page, sdk_page
from synth.gateway.app import describe_api
from synth.jobs.json_schema import job_file_schema


def _openapi() -> str:
    return json.dumps(describe_api().openapi(), indent=2, ensure_ascii=False) + "\n"


def _job_file_schema() -> str:
    return json.dumps(job_file_schema(), indent=2, ensure_ascii=False) + "\n"


DOCUMENTS: dict[str, Callable[[], str]] = {
    "openapi.json": _openapi,
    "asyncapi.yaml": asyncapi,
    "events.md": events_page,
    "configs.md": configs_page,
    "config.schema.json": _job_file_schema,
    "settings.md": settings_page,
    "sdk.md": sdk_page,
    "client.md": client_page,
    "../shared/synth/runtime/environment/setting_names.py": setting_names,
    "gpu.md": gpu_page,
}
