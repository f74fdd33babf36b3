"""Markov chain Monte Carlo, Gibbs sampling, sequential Monte Carlo and nested sampling."""
