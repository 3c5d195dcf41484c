"""Recipes: their keys, where they are found, and the learning rate they define."""
