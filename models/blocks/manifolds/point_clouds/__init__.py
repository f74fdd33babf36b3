"""Shapes that are observed through points: laws of the points, rough shapes, registration."""
