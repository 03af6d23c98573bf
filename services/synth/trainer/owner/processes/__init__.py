"""Training processes as the service sees them."""
