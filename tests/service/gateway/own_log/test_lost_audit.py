"""What the audit stream does not take is counted and logged, and nobody waits for it."""

from __future__ import annotations

import asyncio

from prometheus_client import REGISTRY

from synth.bus.server.topology import AUDIT


def lost(kind: str) -> float:
    return REGISTRY.get_sample_value("synth_gateway_audit_records_lost_total", {"kind": kind}) or 0.0


async def test_records_that_the_bus_does_not_take_are_counted_and_those_of_operators_logged_whole(
    bus_as, start_gateway, client_of, own_bus, capsys
):
    running = await start_gateway(audit_write_s=0.3, audit_queue=3)
    user = await client_of(running)
    made = (await user.http.post("/api/keys", json={"scopes": ["read"]})).json()
    await (await bus_as("bus")).js.delete_stream(AUDIT)
    before = {kind: lost(kind) for kind in ("operator", "login", "refusal")}
    for n in range(40):
        headers = {"Authorization": f"Bearer sk-{n}"}
        assert (await user.http.get("/api/jobs", headers=headers)).status_code == 401
    assert (await user.http.get("/api/keys", headers={"Authorization": f"Bearer {made['key']}"})).status_code == 403
    assert (await user.http.get("/api/jobs/job_secretless")).status_code == 404
    async with asyncio.timeout(20):
        while not all(lost(kind) > before[kind] for kind in before):  # noqa: ASYNC110 - nothing tells when
            await asyncio.sleep(0.02)
    assert lost("login") - before["login"] >= 30
    await running.stop()
    printed = capsys.readouterr().out
    assert "an audit record of an operator is lost" in printed
    assert "GET /api/jobs/{job_id}" in printed
    assert "job_secretless" in printed
    assert "audit records are lost" in printed
