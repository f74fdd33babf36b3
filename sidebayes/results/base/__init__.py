"""What every kind of result stands on: the fit, labels, predictions, intervals."""
