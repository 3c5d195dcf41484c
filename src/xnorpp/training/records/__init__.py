"""What a run reports: metrics, results, curves."""
