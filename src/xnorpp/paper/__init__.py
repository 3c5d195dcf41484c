"""One file a table or figure of the paper; `report` draws what `results/` has of them.

Nothing is imported here: the tables of recorded numbers need neither torch nor matplotlib.
"""
