"""From a data set to batches on the training device: order, streaming, workers, decoding."""
