"""Recipes: what they may say, where they are found, the learning rate they mean."""
