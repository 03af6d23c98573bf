"""Settings of the gateway's writes to the audit stream."""

from __future__ import annotations

from pydantic import Field

from synth.settings import Settings


class AuditSettings(Settings):
    """The gateway's writes to the audit stream, whose limits are `SYNTH_AUDIT_DAYS` and `SYNTH_AUDIT_RECORDS`."""

    audit_window_s: float = Field(default=300.0, gt=0)
    """A fact that repeats within this many seconds is written twice: at its first time, and at the end with the number
    of repeats."""

    audit_window_records: int = Field(default=1000, ge=10)
    """How many different records of one kind and organisation a gateway writes in a window; further facts are counted
    in one record. All log-ins with unknown keys count as one organisation, and each address may have a tenth of the
    records."""

    audit_queue: int = Field(default=10_000, ge=1)
    """Records that may wait to be written. Further records are lost: they are counted in
    `synth_gateway_audit_records_lost` and logged, records of operators with their whole content."""

    audit_write_s: float = Field(default=30.0, gt=0)
    """For how many seconds the gateway retries to write a record while the bus does not take it; then it is lost."""
