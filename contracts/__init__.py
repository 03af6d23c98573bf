"""The written contracts of the platform, generated from the code: `python -m contracts` writes them into docs/."""
