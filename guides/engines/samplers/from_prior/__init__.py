"""Samplers that go from draws of the prior to the posterior, and tell the evidence on the way."""
