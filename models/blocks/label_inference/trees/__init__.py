"""Sums over labels of trees of links: messages, and small trees side by side."""
