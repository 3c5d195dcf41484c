"""Runs of a model that only look at it: they leave it as it was."""
