"""What came out: trees, scores, comparison, plots, reports."""
