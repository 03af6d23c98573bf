"""The published clients, unmodified, against a whole cluster: `make test-clients`."""
