"""One-bit layers that a model writes by hand with torch's own functions."""
