"""Values of any rank: moves of axes, recorded so that they vanish in pairs."""
