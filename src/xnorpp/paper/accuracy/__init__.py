"""Tables 1 and 3, the ablation and the trials: runs, queue, tables, plots."""
