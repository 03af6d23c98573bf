"""The settings of subscribers from outside the cluster."""

from __future__ import annotations

from pydantic import Field, SecretStr

from synth.settings import Settings

#: A key's feeds are ended by their names, so there must be few names for every value that the setting may have had.
MOST_FEEDS = 16


class SubscriberSettings(Settings):
    """Bus keys (`synthctl keys create --bus`), their connections and their feeds."""

    nats_issuer_seed: SecretStr | None = None
    """The seed of the account key that vouches for bus keys at nats-server, whose configuration has its public key
    (`SYNTH_NATS_ISSUER`); `synthd bus issuer` makes both. Without it there are no bus keys. No other service needs
    it."""

    bus_session_s: float = Field(default=300.0, ge=1)
    """For how many seconds a connection by a bus key is valid; then it has to log in again. A revoked key gets no
    events from that moment on, and its connections end after this time at the latest."""

    bus_logins: int = Field(default=20, ge=1)
    """How often one bus key may log in within `SYNTH_BUS_SESSION_S` at this gateway, and so how many connections it
    may have."""

    bus_feeds: int = Field(default=4, ge=1, le=MOST_FEEDS)
    """Feeds that one bus key may have at a time. Each is a consumer of the log; a feed without a listener counts until
    it is removed."""

    bus_feeds_share: float = Field(default=0.5, ge=0, le=1)
    """The share of the log's consumers (10,000 at most) above which no feed is opened for any key: the rest is for the
    services, none of which could follow the log without it. The services' consumers count too."""

    bus_end_check_s: float = Field(default=1.0, gt=0)
    """The interval in seconds at which the gateway checks for ended bus keys, and ends their feeds: a feed may get
    events for this much longer."""

    bus_feed_bytes_per_s: int = Field(default=1 << 20, ge=1024)
    """The most bytes per second that a feed delivers: it also reads past events, and must not slow running work."""

    bus_feed_idle_s: float = Field(default=10.0, ge=1)
    """After how many seconds without a listener a feed is removed."""

    bus_feed_heartbeat_s: float = Field(default=5.0, ge=0.1)
    """The interval in seconds of the heartbeats of a feed without events."""
