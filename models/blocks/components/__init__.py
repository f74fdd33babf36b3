"""Components of mixtures and their priors, updates and starts."""
