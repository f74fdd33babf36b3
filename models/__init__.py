"""Generative models: what is believed."""
