"""Graders: the score of a model's sample, by checks and comparisons that the user writes down."""
