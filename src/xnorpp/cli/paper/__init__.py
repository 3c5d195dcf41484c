"""`xnorpp paper`: the paper's tables and figures, one function each."""
