"""Draws of sites that are known up to signs, brought to one choice of these."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from sidebayes.models.blocks.block_facts import UpToSigns

from ..base import EngineResult, Problem
from ..problem.declared import declared_blocks, site_dims
from ..problem.density import abstract_trace
from .declared import sites_up_to_signs

__all__ = ["one_sign", "with_one_sign"]


def with_one_sign(problem: Problem, result: EngineResult) -> EngineResult:
    """Result whose draws and modes agree in signs that sites are known up to, which no density tells.

    See `one_sign`.

    Parameters
    ----------
    problem : Problem
    result : EngineResult
    """
    density = result.sample_stats["lp"]
    best = np.unravel_index(density.argmax(), density.shape)
    draws, modes = one_sign(problem, result.draws, best)[0], result.modes
    if modes is not None:  # in the signs of the draws, so that they can be compared
        both = {
            name: np.concatenate([draws[name][best][None], site])[None]
            for name, site in modes.sites.items()
            if name in draws
        }
        signed = {name: site[0, 1:] for name, site in one_sign(problem, both, (0, 0))[0].items()}
        modes = modes._replace(sites=modes.sites | signed)
    return replace(result, draws=draws, modes=modes)


def one_sign(
    problem: Problem, draws: Mapping[str, NDArray], best: tuple
) -> tuple[dict[str, NDArray], list[NDArray]]:
    """Draws with one choice of the signs that sites are known up to, and by which signs each was changed.

    A block says what its sites stand for (`UpToSigns`), such as a Cholesky factor for a covariance, and
    sites that declare signs of the same axis follow. Other sites that declare signs of one axis are changed
    together, so that for each entry of the axis their inner product with one draw is not negative. Sites
    that are not among the draws are left out.

    Parameters
    ----------
    problem : Problem
    draws : mapping of str to ndarray, shape (chain, draw, ...)
    best : tuple
        Chain and number of that draw.

    Returns
    -------
    dict of ndarray
    list of ndarray, shape (chain, draw, ...)
        Of every axis.
    """
    draws, dims = dict(draws), site_dims(problem)
    known: dict[str, NDArray] = {}
    for block, names in declared_blocks(abstract_trace(problem)):
        own = {role: draws[name] for role, name in names.items() if name in draws}
        if own and isinstance(block, UpToSigns):
            values, (axis, signs) = block.canonical(own)
            draws |= {names[role]: value for role, value in values.items()}
            known[axis] = signs
    declared = {n: axis for n, axis in sites_up_to_signs(problem).items() if n in draws}
    for axis in dict.fromkeys(declared.values()):
        place = {
            n: dims[n].index(axis) - len(dims[n]) for n, own in declared.items() if own == axis
        }
        last = {name: np.moveaxis(draws[name], at, -1) for name, at in place.items()}
        if axis not in known:
            known[axis] = _agreeing(list(last.values()), best)
        signs = known[axis]
        for name, value in last.items():
            wide = signs.reshape(*signs.shape[:-1], *[1] * (value.ndim - signs.ndim), -1)
            draws[name] = np.moveaxis(value * wide, -1, place[name])
    return draws, list(known.values())


def _agreeing(parts: list[NDArray], best: tuple) -> NDArray[np.float64]:
    """Signs, shape (chain, draw, entry), by which draws of all sites agree with one of them."""
    products = [
        (part * part[best]).reshape(*part.shape[:2], -1, part.shape[-1]).sum(axis=2)
        for part in parts
    ]
    return np.where(np.sum(products, axis=0) < 0, -1.0, 1.0)
