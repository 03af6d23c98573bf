"""What subscribers from outside may take of the bus."""

from __future__ import annotations

from pydantic import Field, SecretStr

from synth.settings import Settings

#: A key's feeds are ended by their names, so that these must be few whatever the setting once was.
MOST_FEEDS = 16


class SubscriberSettings(Settings):
    """Bus keys (`synthctl keys create --bus`), their connections and their feeds."""

    nats_issuer_seed: SecretStr | None = None
    """The seed of the account key that vouches for bus keys at nats-server, whose configuration has its public key
    (`SYNTH_NATS_ISSUER`); `synthd bus issuer` makes both. Without it there are no bus keys. No other service needs
    it."""

    bus_session_s: float = Field(default=300.0, ge=1)
    """For how many seconds a connection by a bus key is let in; then it has to log in again. A key that was revoked
    hears nothing from that moment on, and its connections end after this at the latest."""

    bus_logins: int = Field(default=20, ge=1)
    """How often one bus key may log in within `SYNTH_BUS_SESSION_S` at this gateway, and so how many connections it
    may have."""

    bus_feeds: int = Field(default=4, ge=1, le=MOST_FEEDS)
    """Feeds that one bus key may have at a time. Each is a consumer of the log; one that nobody listens to any more
    counts until it is removed."""

    bus_feeds_share: float = Field(default=0.5, ge=0, le=1)
    """The share of the consumers which the log may have at all (10,000) above which no feed is opened, whoever asks:
    the rest is for the services, none of which could follow the log without it. Theirs count too."""

    bus_end_check_s: float = Field(default=1.0, gt=0)
    """Every how many seconds the gateway looks for bus keys whose end has come, and ends their feeds: so much longer
    one may hear."""

    bus_feed_bytes_per_s: int = Field(default=1 << 20, ge=1024)
    """How fast a feed delivers at most: it reads the past as well, and must not slow what runs."""

    bus_feed_idle_s: float = Field(default=10.0, ge=1)
    """After how many seconds without a listener a feed is removed."""

    bus_feed_heartbeat_s: float = Field(default=5.0, ge=0.1)
    """How often a feed without events says that it lives."""
