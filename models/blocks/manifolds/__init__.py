"""Spheres and spaces of shapes: geodesics, means, charts, parallel transport."""
