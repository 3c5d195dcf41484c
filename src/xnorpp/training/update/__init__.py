"""What surrounds an optimiser's update: gradients before it, averages of the weights after it."""
