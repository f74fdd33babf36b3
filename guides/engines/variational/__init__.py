"""Variational inference: stochastic, and by coordinate ascent."""
