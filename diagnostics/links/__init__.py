"""Scores of links, links in doubt, and pairs to ask about next."""
