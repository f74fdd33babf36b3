"""Known classes of rows, told by a fit that does not look at a row's own class."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from sidebayes.diagnostics.tree import pooled_draws
from sidebayes.diagnostics.trust.known_classes import recognition, sentence
from sidebayes.guides.engines.problem.declared import declared_blocks
from sidebayes.guides.engines.problem.density import abstract_trace, finite_mixtures
from sidebayes.models.blocks.classes.class_table import ClassTable
from sidebayes.models.blocks.components.gaussian_block import GaussianComponents
from sidebayes.models.blocks.components.gaussian_prior import GaussianPrior
from sidebayes.models.blocks.components.gaussians.gaussian import Gaussian, IndependentNormals
from sidebayes.models.blocks.components.gaussians.left_out import Normals, left_out_joint
from sidebayes.models.blocks.mixtures.finite_mixture import FiniteMixture
from sidebayes.models.blocks.side_information.partial_labels import PartialLabels

from .fit_base import FitBase
from .predictions import over_draws

__all__ = ["told_by_known_classes"]

_ROWS = 200
"""Most rows of known class that are looked at."""

_DRAWS = 20
"""Most draws."""

_STRIDE = 0.6180339887
"""Share of all rows between one that is looked at and the next, so that they come from everywhere."""


def told_by_known_classes(fit: FitBase) -> tuple[str, str] | None:
    """What known classes say against a fit, as a level and a sentence of its verdict; None if nothing."""
    if not fit.has_labels or fit.run.model is None:  # of a file without its model
        return None
    with fit.run.precision:
        trace = abstract_trace(fit.run.problem)
        sources = list(finite_mixtures(trace).values())
        if len(sources) != 1 or not sources[0][0].is_told_some:
            return None
        labelled = any(isinstance(value, PartialLabels) for value in fit.run.data.values())
        if type(sources[0][0]).told is FiniteMixture.told and not labelled:
            return None  # the densities of another outcome may stand in the place of statements
        blocks = [block for block, _ in declared_blocks(trace)]
    given = pooled_draws(fit.tree)
    number = len(next(iter(given.values())))
    keep = np.unique(np.linspace(0, number - 1, min(number, _DRAWS)).round().astype(int))
    draws = {name: value[keep] for name, value in given.items()}
    found = over_draws(fit, known_rows, fit.run, draws)
    normals = found.pop("normals", None)
    rows = found["stated"][0].min(axis=1) < found["stated"][0].max(axis=1)
    found = {name: value[:, rows] for name, value in found.items()}
    stated, prob = found["stated"][0], _probabilities(found["joint"], found["within"])
    if len(keep) > 1:  # rows are left out by the weights of draws
        weight = 1 / np.maximum((prob * stated).sum(axis=2, keepdims=True), np.finfo(float).tiny)
        unseen = (prob * weight).sum(axis=0) / weight.sum(axis=0)
        return sentence(None, recognition(unseen, stated))
    seen = recognition(prob[0], stated)
    one = {name: value[0] for name, value in found.items()}
    moments = None if normals is None else (normals[0][0], normals[1][0])
    return sentence(seen, recognition(_one_step(one, moments, blocks), stated))


def known_rows(trace: dict, layout: Any, owners: dict) -> dict[str, Any]:
    """Rows of known class, with what says where they belong."""
    fn, value = next(iter(finite_mixtures(trace).values()))
    stated, density = jnp.asarray(fn.told()), fn.untold_densities(value)
    size = len(stated)
    known = stated.min(axis=1) < stated.max(axis=1)
    order = jnp.argsort((jnp.arange(size) * _STRIDE) % 1.0)
    rows = order[jnp.argsort(~known[order], stable=True)[:_ROWS]]
    log_weights = jnp.broadcast_to(fn.labels.log_weights, density.shape)[rows]
    within = fn.classes_within(value)
    found = {
        "stated": stated[rows],
        "joint": density[rows] + log_weights,
        "total": jnp.broadcast_to(known.sum(), rows.shape),
        "within": jnp.broadcast_to(within, (size, *within.shape[-2:]))[rows],
    }
    normals = _moments(getattr(fn, "components", None))
    if normals is None or jnp.ndim(value) != 2 or len(value) != size:
        return found
    sizes = size * jnp.exp(log_weights)
    return found | {"x": value[rows], "sizes": sizes, "normals": normals}


def _moments(components: Any) -> tuple[Any, Any] | None:
    """Means and covariances of normal components, None of others."""
    if isinstance(components, Gaussian):
        factor = components.scale_tril
        covariance = factor @ jnp.swapaxes(factor, -1, -2)
    elif isinstance(components, IndependentNormals):
        variance = components.base_dist.scale**2
        covariance = variance[..., None] * jnp.eye(variance.shape[-1])
    else:
        return None
    shape = *components.batch_shape, *components.event_shape
    return jnp.broadcast_to(components.mean, shape), jnp.broadcast_to(
        covariance, (*shape, shape[-1])
    )


def _probabilities(joint: NDArray, within: NDArray) -> NDArray[np.float64]:
    """Probabilities of classes, of components and of classes within them."""
    prob = np.einsum("...k,...kc->...c", softmax(joint, axis=-1), within)
    scaled: NDArray[np.float64] = prob / prob.sum(axis=-1, keepdims=True)
    return scaled


def _one_step(
    rows: dict[str, NDArray], moments: tuple[NDArray, NDArray] | None, blocks: list[Any]
) -> NDArray[np.float64]:
    """Probabilities of classes of rows that are taken out of what was learned from rows alone."""
    joint, within, stated = rows["joint"], rows["within"], rows["stated"]
    told = np.maximum(np.einsum("ikc,ic->ik", within, stated), np.finfo(float).tiny)
    share = softmax(joint + np.log(told), axis=1)
    learned = next((one for one in blocks if type(one) is GaussianComponents), None)
    if learned is not None and moments is not None and (learned.from_data or learned.prior is None):
        prior = learned.prior if isinstance(learned.prior, GaussianPrior) else None
        sizes = np.maximum(rows["sizes"][0], share.sum(axis=0))
        df = 2.0 * learned.num_features + 4.0 if prior else 0.0
        shrinkage = prior.shrinkage if prior else 0.0
        fitted = Normals(*moments, learned.covariance, sizes, float(shrinkage), df)
        joint = left_out_joint(rows["x"], share, fitted)
    if any(isinstance(one, ClassTable) for one in blocks):
        counted = (share.sum(axis=0) * rows["total"][0] / len(share))[:, None]
        own = share[:, :, None] * within * stated[:, None] / told[:, :, None]
        rest = np.maximum(counted * within - own, 0.0) + 1 / within.shape[2]
        within = rest / rest.sum(axis=2, keepdims=True)
    return _probabilities(joint, within)
