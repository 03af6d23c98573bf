"""Processes that are forks of a process which has imported their modules."""
