"""Odd arguments for everything public, and what may come of them."""
