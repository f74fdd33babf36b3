"""Draws of sites that are known up to signs, brought to one choice of these."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from sidebayes.models.blocks.block import UpToSigns

from ..base import EngineResult, Problem
from ..problem.declared import declared_blocks, site_dims
from ..problem.density import abstract_trace
from .declared import sites_up_to_signs

__all__ = ["with_one_sign"]


def with_one_sign(problem: Problem, result: EngineResult) -> EngineResult:
    """Result whose draws agree in what no density tells: signs that sites are known up to.

    A block says what its sites stand for (`UpToSigns`), such as a Cholesky factor for a covariance, and
    sites that declare signs of the same axis follow. Other sites that declare signs of one axis are changed
    together, so that for each entry of the axis their inner product with the draw of highest density is
    not negative.

    Parameters
    ----------
    problem : Problem
    result : EngineResult
    """
    draws, dims = dict(result.draws), site_dims(problem)
    known: dict[str, NDArray] = {}
    for block, names in declared_blocks(abstract_trace(problem)):
        if isinstance(block, UpToSigns):
            values, (axis, signs) = block.canonical({r: draws[n] for r, n in names.items()})
            draws |= {names[role]: value for role, value in values.items()}
            known[axis] = signs
    declared = sites_up_to_signs(problem)
    best = np.unravel_index(result.sample_stats["lp"].argmax(), result.sample_stats["lp"].shape)
    for axis in dict.fromkeys(declared.values()):
        place = {
            n: dims[n].index(axis) - len(dims[n]) for n, own in declared.items() if own == axis
        }
        last = {name: np.moveaxis(draws[name], at, -1) for name, at in place.items()}
        signs = known[axis] if axis in known else _agreeing(list(last.values()), best)
        for name, value in last.items():
            wide = signs.reshape(*signs.shape[:-1], *[1] * (value.ndim - signs.ndim), -1)
            draws[name] = np.moveaxis(value * wide, -1, place[name])
    return replace(result, draws=draws)


def _agreeing(parts: list[NDArray], best: tuple) -> NDArray[np.float64]:
    """Signs, shape (chain, draw, entry), by which draws of all sites agree with one of them."""
    products = [
        (part * part[best]).reshape(*part.shape[:2], -1, part.shape[-1]).sum(axis=2)
        for part in parts
    ]
    return np.where(np.sum(products, axis=0) < 0, -1.0, 1.0)
