"""Processes that are forks of a process that has imported what they need."""
