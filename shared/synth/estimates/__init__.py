"""Estimates from rewards, with their intervals."""
