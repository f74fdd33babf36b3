"""Data sets, tables, formulas and simulators."""

from . import datasets as datasets
