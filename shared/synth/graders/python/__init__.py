"""Graders that are code: read, and run in the sandbox."""
