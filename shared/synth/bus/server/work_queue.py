"""Removes the messages of the work queue that the server has and cannot read: their bytes on its disk are damaged.

The server neither delivers such a message nor takes another one on its subject, and removes it only with all others. So
the others are published again. A worker that owns one of them then loses it to the next worker, as if it had died. The
damaged tasks are queued again by the verifier, from the log.
"""

# nats-py annotates parts of itself not at all.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

from nats.js import JetStreamContext
from nats.js.api import RawStreamMsg
from nats.js.errors import APIError, NotFoundError

from synth.bus.server.topology import WORK
from synth.runtime import logs

log = logs.get("work queue")

_ONE_PER_SUBJECT = 10077


async def drop_unreadable_work(js: JetStreamContext) -> list[str]:
    """Remove the messages that cannot be read; returns their subjects."""
    readable: list[RawStreamMsg] = []
    unreadable: list[str] = []
    for subject in await _subjects(js):
        try:
            readable.append(await js.get_last_msg(WORK, subject))
        except NotFoundError:
            unreadable.append(subject)
    # The others were acknowledged meanwhile.
    unreadable = sorted(set(unreadable).intersection(await _subjects(js))) if unreadable else []
    if not unreadable:
        return []
    log.error("messages of the work queue cannot be read, and are removed", subjects=unreadable)
    await js.purge_stream(WORK)
    for message in readable:
        try:
            await js.publish(message.subject or "", message.data or b"", stream=WORK)
        except APIError as error:
            # The verifier was faster.
            if error.err_code != _ONE_PER_SUBJECT:
                raise
    return unreadable


async def _subjects(js: JetStreamContext) -> list[str]:
    info = await js.stream_info(WORK, subjects_filter=">")
    return list(info.state.subjects or {})
