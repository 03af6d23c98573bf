"""The secrets of a service, and of one purpose, from the cluster secret of a test."""

from __future__ import annotations

from synth.outbound.service_calls import CallSigner, CallVerifier
from synth.service_secrets import Keyring, Purpose, ServiceSecrets

CLUSTER_SECRET = "test-cluster-secret"


def secrets_of(service: str = "gateway", cluster_secret: str = CLUSTER_SECRET, *earlier: str) -> ServiceSecrets:
    return ServiceSecrets.derive(service, cluster_secret, earlier)


def keyring(purpose: Purpose, cluster_secret: str = CLUSTER_SECRET, *earlier: str) -> Keyring:
    return secrets_of("gateway", cluster_secret, *earlier)[purpose]


def credentials(cluster_secret: str = CLUSTER_SECRET, *earlier: str) -> Keyring:
    """What rollout credentials are signed with."""
    return keyring(Purpose.CREDENTIALS, cluster_secret, *earlier)


def calls_of(service: str, cluster_secret: str = CLUSTER_SECRET) -> CallSigner:
    """Signs the calls of a service of the cluster."""
    return CallSigner(secrets_of(service, cluster_secret)[Purpose(f"{service}-calls")], lasts_s=300)


def verifier_of(receiver: str, cluster_secret: str = CLUSTER_SECRET, *earlier: str) -> CallVerifier:
    """Verifies the calls of an inference process."""
    return CallVerifier(secrets_of("inference", cluster_secret, *earlier), receiver)
