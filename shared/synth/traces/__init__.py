"""What becomes of a trace outside the platform: conversations to train on, and the shape that clients store."""
