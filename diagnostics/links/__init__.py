"""Scores of links, links in doubt, and selection of pairs to query next."""
