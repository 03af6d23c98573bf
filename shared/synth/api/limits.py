"""The largest sizes of a request; the gateway refuses larger ones, so the client need not send them."""

from __future__ import annotations

from synth.events.catalogue import MAX_EVENT_BYTES

#: Bytes of a job's configuration, as JSON: a quarter of the limit of an event, which escapes it again.
MAX_CONFIG_BYTES = MAX_EVENT_BYTES // 4
#: Bytes of the client's own metadata of a job, as JSON.
MAX_METADATA_BYTES = 64 << 10
#: Characters of a model's id, and of an address.
MAX_MODEL_ID = 512
MAX_URL = 2048
#: Characters of an idempotency key.
MAX_IDEMPOTENCY_KEY = 255
#: Bytes of an environment key, which travels in an HTTP header.
MAX_ENVIRONMENT_KEY_BYTES = 8 << 10
#: Items of one page, of jobs and files, models, events, and steps of metrics: the next page has the rest.
MAX_PAGE = 200
MAX_MODELS = 1000
MAX_EVENTS = 2000
MAX_STEPS = 10_000
#: Values of metrics of one page, which has at least the values of one step.
MAX_POINTS = 10_000
