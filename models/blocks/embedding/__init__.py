"""Positions of points, and noisy observations of the distances between them."""
