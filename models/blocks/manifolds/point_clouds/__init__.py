"""Shapes that are seen through points: laws of the points, rough shapes, registration."""
