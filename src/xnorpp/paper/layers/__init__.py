"""Table 2 and Figure 1: single layers."""
