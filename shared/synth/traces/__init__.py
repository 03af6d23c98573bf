"""Convert a trace for use outside the platform: conversations to train on, and the shape that clients store."""
