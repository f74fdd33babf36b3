"""Data that serve, and odd values of every type to put in the place of arguments."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pandas as pd

import sidebayes as sb
from sidebayes import GaussianPrior, Links

X = np.random.default_rng(0).normal(size=(12, 2))
LABELS = np.repeat([0, 1, 2], 4)
PAIRS = [(0, 1), (2, 3), (4, 9)]
LINKS = Links.must_link(PAIRS, 2.0, num_points=12)
PRIOR = GaussianPrior(np.zeros(2), 1.0, 5.0, np.eye(2))
QUICK = sb.EM(num_restarts=1, max_steps=2)
DRAWS = sb.BlockedGibbs(num_warmup=1, num_samples=20, num_chains=1)
FIT = object()
"""Stands for a fit, which is made when a test first needs it: all workers read this file."""
TABLE = pd.DataFrame({"y": X[:, 0], "t": X[:, 1], "who": np.repeat(list("abc"), 4)})
PERSONS = pd.DataFrame({"who": list("abc"), "days": [1.0, 2.0, 4.0], "died": [1, 0, 1]})
FORMULA = "y ~ t + (1 | who)"

NUMBERS = (-1, 0, 1, 2.5, 3.0, np.nan, np.inf, -np.inf, True, None, "3", "", b"1", [1], (), {}, 1j)
NUMBERS = (
    *NUMBERS,
    10**400,
    2**63,
    np.float32(0.5),
    np.int8(2),
    np.array([1, 2]),
    np.array(1.0),
    X,
)
TEXT = (None, 3, "", "no such name", b"em", ["em"], ("em",), {}, 1.5, X, object(), "a\0b")
ARRAYS = (
    *(None, "x", 3, np.nan, True, object(), [], [[]], [0], [0, 1], [-1, 5], [0.5, 1.0], ["a", 1]),
    *([np.nan, 1.0], [[0, 1], [1, 2]], [(0, 0)], [(0, 12)], [(0, 2**31)], [(0, 2**63)], [(0, -1)]),
    *(
        [[0], [1, 2]],
        [object()],
        {"a": [1]},
        {(0, 1)},
        [1j, 2],
        X,
        X[None],
        X.astype(str),
        -X[:, 0],
    ),
    *(np.full((12, 2), np.inf), np.ones((12, 2), bool), np.zeros((0, 2)), np.zeros((12, 0))),
    *(np.ma.masked_array(LABELS, LABELS == 1), np.arange(2).astype("datetime64[D]")),
    *(pd.DataFrame({"a": [0.0, 1.0], "b": ["u", "v"]}), pd.Series([1, None]), LABELS, LABELS[:5]),
)
COLUMNS = (
    *({}, {"a": [1, 2, 3]}, {"a": ["u", "v", "w"]}, {"a": [1]}, {"a": [None, "u", 1]}),
    *({1: [1, 2, 3]}, {"a/b": [1, 2, 3]}, {"": [1, 2, 3]}, {"i": [1, 2, 3]}, {"a\0": [1, 2, 3]}),
)
PATHS = (None, 3, "", "/", ".", "no/such/file.nc", "no.csv", "a\0b", b"x", "x" * 5000, __file__, [])
FORMULAS = (
    *(*TEXT, (), [], [FORMULA, 3], "~", "y ~", "y ~ (1 | who)", "y ~ t", "y ~ 0 + (0 | who)"),
    *(
        "y ~ nothing + (1 | who)",
        "y ~ t + (1 | nobody)",
        "who ~ t + (1 | who)",
        "y ~ t + (1 | a b)",
    ),
    *("y ~ f(t) + (1 | who)", "y ~ (t + (1 | who)", "y ~ t + (1 / 0 | who)", "y + t ~ (1 | who)"),
    *("y ~ t + (1 | who) + (1 | t)", "y ~ t + (t | who) + (1 | who)", "y ~ t | who", "y ~ who(t)"),
)
TABLES = (
    *(TABLE[:0], TABLE[:1], TABLE[["y"]], TABLE[["y", "t"]], TABLE[["t", "who"]]),
    *(TABLE.assign(t=np.nan), TABLE.assign(t="a"), TABLE.assign(who=None), TABLE.assign(y=None)),
    *(TABLE.assign(t=np.inf), TABLE.astype(str), TABLE.assign(t=TABLE["t"] + 1j), TABLE[["t"]]),
    *(pd.concat([TABLE, TABLE], axis=1), dict(TABLE), {"y": [1], "t": [1, 2], "who": ["a"]}),
    *(TABLE.assign(who=[[1]] * 12), TABLE.set_index("who"), *ARRAYS),
)
OBJECTS = (None, 3, "x", X, [], {}, object(), sb.EM, QUICK, LINKS, FIT, PRIOR, lambda x: None)


@cache
def a_fit() -> sb.Fit:
    """A fit with links."""
    return sb.fit("ppc", X, LINKS, num_clusters=2, engine=QUICK, progress=False)


def with_fit(value: Any) -> Any:
    """The value, with the fit where `FIT` stands for it."""
    if isinstance(value, dict):
        return {key: with_fit(one) for key, one in value.items()}
    return a_fit() if value is FIT else value


def of_fit(name: str) -> Any:
    """A method of the fit."""
    return lambda **given: getattr(a_fit(), name)(**given)
