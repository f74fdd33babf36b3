"""Positions of points, and distances between them that are observed in noise."""
