"""Routines of inference, which fit models."""
