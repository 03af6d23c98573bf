"""Addresses that are not the public internet, as a list of our own.

It follows IANA's registries of special-purpose IPv4 and IPv6 addresses, and not `ipaddress.is_global`, whose answer
changes with the version of Python. It is stricter than the registries: what leads to another address that nobody looked
at (6to4, Teredo, NAT64, relays) is refused as a whole, and so are the sinks that a network may have inside.
"""

from __future__ import annotations

import ipaddress

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

#: The only IPv6 addresses that are given out as public: NAT64 (64:ff9b::/96 and 64:ff9b:1::/48), IPv4-compatible,
#: unique-local (fc00::/7), link-local (fe80::/10), site-local, multicast (ff00::/8), discard (100::/64), segment
#: routing (5f00::/16), loopback and unspecified all lie outside.
_GLOBAL_UNICAST_V6 = ipaddress.ip_network("2000::/3")

_LOOPBACK_V4 = ipaddress.ip_network("127.0.0.0/8")
_LOOPBACK_V6 = ipaddress.ip_address("::1")

_SPECIAL = tuple(
    ipaddress.ip_network(network)
    for network in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # shared by the customers of a carrier (CGNAT)
        "127.0.0.0/8",  # loopback
        "169.254.0.0/16",  # link-local
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments
        "192.0.2.0/24",  # documentation
        "192.31.196.0/24",  # AS112, a sink of DNS that any network may run inside
        "192.52.193.0/24",  # relays of multicast
        "192.88.99.0/24",  # relays of 6to4
        "192.168.0.0/16",  # private
        "192.175.48.0/24",  # AS112
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and the broadcast address
        "2001::/23",  # protocol assignments: Teredo, benchmarks, ORCHID
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4
        "2620:4f:8000::/48",  # AS112
        "3fff::/20",  # documentation
    )
)

#: Where clouds tell a machine its credentials. One is a public address; the others lie in networks that an operator
#: may open for other reasons.
_METADATA = frozenset(
    ipaddress.ip_address(address)
    for address in (
        "169.254.169.254",  # AWS, GCP, Azure, Oracle, DigitalOcean
        "169.254.169.123",  # AWS, time
        "169.254.169.253",  # AWS, names
        "169.254.170.2",  # AWS, the credentials of a container
        "169.254.170.23",  # AWS, the credentials of a pod
        "169.254.0.23",  # Tencent
        "100.100.100.200",  # Alibaba
        "168.63.129.16",  # Azure, the host
        "192.0.0.192",  # Oracle, the older one
        "fd00:ec2::23",  # AWS, the credentials of a pod
        "fd00:ec2::123",
        "fd00:ec2::253",
        "fd00:ec2::254",
        "fd20:ce::254",  # GCP
        "fd00:42::42",  # Scaleway
    )
)


def parse_address(text: str) -> Address:
    """Parse an address, without its zone; an IPv4 address written as IPv6 becomes IPv4. Raises ValueError."""
    ip = ipaddress.ip_address(text.partition("%")[0])
    return ip.ipv4_mapped or ip if isinstance(ip, ipaddress.IPv6Address) else ip


def is_public(ip: Address) -> bool:
    """Return whether an address is of the public internet."""
    if isinstance(ip, ipaddress.IPv6Address) and ip not in _GLOBAL_UNICAST_V6:
        return False
    return not is_metadata(ip) and not any(ip in network for network in _SPECIAL)


def is_loopback(ip: Address) -> bool:
    """Return whether an address is this machine's."""
    return ip in _LOOPBACK_V4 or ip == _LOOPBACK_V6


def is_metadata(ip: Address) -> bool:
    """Return whether a cloud serves secrets at this address."""
    return ip in _METADATA
