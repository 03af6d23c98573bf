"""Graders that are code: read, and run in processes of their own. There is no sandbox."""
