"""Kernels of Gaussian processes."""
