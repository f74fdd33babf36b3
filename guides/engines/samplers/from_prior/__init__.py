"""Samplers that lead from draws of the prior to the posterior, and estimate the evidence on the way."""
