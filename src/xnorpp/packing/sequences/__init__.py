"""Layers of sequences: attention, and recurrent layers step by step."""
