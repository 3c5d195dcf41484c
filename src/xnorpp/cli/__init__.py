"""The command line: `main.py` and the commands."""
