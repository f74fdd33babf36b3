"""Markov chain Monte Carlo and Gibbs sampling; from the prior, sequential Monte Carlo and nested sampling."""
