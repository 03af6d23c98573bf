"""Runs commands that must reach nothing: no network, no files but their own, no other processes, no keys."""
