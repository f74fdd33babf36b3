"""EM for any declared model: exact, in small batches, and with sampled latent variables."""
