"""Tests of whether groups of shapes differ, by permutation."""
