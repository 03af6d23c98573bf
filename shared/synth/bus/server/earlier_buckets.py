"""Moves secrets of earlier versions: their one bucket becomes a bucket for each kind.

A move that was interrupted is continued by the next one: the earlier bucket is deleted last.
"""

# nats-py annotates parts of itself not at all.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

from nats.js import JetStreamContext
from nats.js.errors import BadRequestError, NotFoundError

from synth.bus.recorded import EXPECTED, WRONG_LAST_SEQUENCES
from synth.bus.server.topology import SECRETS
from synth.runtime import logs

log = logs.get("provision")

#: The bucket of all secrets, until each kind had its own.
_EARLIER = "secrets"


async def split_secrets(js: JetStreamContext) -> None:
    """Move each record of the earlier bucket to the bucket of its kind, then delete the earlier one."""
    stream, moved, last = f"KV_{_EARLIER}", 0, 0
    try:
        await js.stream_info(stream)
    except NotFoundError:
        return
    while True:
        try:
            message = await js.get_msg(stream, seq=last + 1, subject=">", next=True)
        except NotFoundError:
            break
        assert message.seq is not None
        assert message.subject is not None
        last, key = message.seq, message.subject.split(".", 2)[2]
        if message.data and (bucket := SECRETS.get(key.partition(".")[0])):
            moved += await _create(js, bucket, key, message.data)
    await js.delete_stream(stream)
    log.info("secrets moved to their buckets", records=moved)


async def _create(js: JetStreamContext, bucket: str, key: str, body: bytes) -> bool:
    try:
        await js.publish(f"$KV.{bucket}.{key}", body, stream=f"KV_{bucket}", headers={EXPECTED: "0"})
    except BadRequestError as error:
        if error.err_code not in WRONG_LAST_SEQUENCES:
            raise
        # An interrupted move has stored it.
        return False
    return True
