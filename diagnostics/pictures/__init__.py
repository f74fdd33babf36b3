"""Plots, and reports in HTML and Markdown."""
