"""Priors and parameters of linear mixed effects, with their updates."""
