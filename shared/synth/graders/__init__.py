"""Graders: what a sample of a model is worth, by checks and comparisons that the user writes down."""
