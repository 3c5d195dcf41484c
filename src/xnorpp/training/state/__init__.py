"""What a run stores and starts from: checkpoints, initial weights, resuming."""
