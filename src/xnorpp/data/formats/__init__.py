"""One file per data set or container."""
