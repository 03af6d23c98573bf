"""What the gateway may write into the audit stream."""

from __future__ import annotations

from pydantic import Field

from synth.settings import Settings


class AuditSettings(Settings):
    """The audit stream, as a gateway writes it. Its age and size: `SYNTH_AUDIT_DAYS`, `SYNTH_AUDIT_RECORDS`."""

    audit_window_s: float = Field(default=300.0, gt=0)
    """What is repeated within so many seconds is written twice: at the first time, and at the end with the number of
    the others."""

    audit_window_records: int = Field(default=1000, ge=10)
    """How many different records of one kind and organisation a gateway writes in a window; what exceeds them is
    counted in one record. All log-ins with unknown keys count as those of one organisation, and a tenth is for each
    address."""

    audit_queue: int = Field(default=10_000, ge=1)
    """Records that wait to be written. Beyond them they are lost: counted in `synth_gateway_audit_records_lost`, and
    logged, those of operators with all that they say."""

    audit_write_s: float = Field(default=30.0, gt=0)
    """For how many seconds a record is tried to be written while the bus does not take it; then it is lost."""
