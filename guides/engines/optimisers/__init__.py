"""Posterior modes by gradients, and Laplace's approximation at them."""
