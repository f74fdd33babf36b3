"""Supports of sites: maps onto them, and indicators where they depend on parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax import Array
from jax.core import Tracer
from numpyro.distributions import biject_to, constraints
from numpyro.distributions.distribution import COERCIONS
from numpyro.distributions.transforms import Transform
from sidebayes.models.blocks.collapsed import Collapsed

__all__ = [
    "bounded_parameters",
    "indicators",
    "keep_indicators",
    "kept_indicators",
    "map_onto",
    "plain_support",
]

_WRAPPERS = dist.ExpandedDistribution | dist.Independent | dist.MaskedDistribution
_LABELS = "labels", "_mixing_distribution"
_DEPENDENT = type(constraints.dependent)
_MIXTURES = dist.MixtureGeneral | dist.MixtureSameFamily | Collapsed


@contextmanager
def indicators() -> Iterator[None]:
    """Make distributions in this block keep NumPyro's indicator where data alone do not determine it.

    These are distributions whose support has computed bounds; components of mixtures, whose data may lie
    in the support of another component; and bases of transformed distributions whose support NumPyro does
    not transform. Other supports are the same at all parameters, and data are compared with them once,
    before a fit.
    """
    COERCIONS.append(_with_indicator)
    try:
        yield
    finally:
        COERCIONS.remove(_with_indicator)


def _with_indicator(cls: type, args: tuple, kwargs: Mapping[str, Any]) -> dist.Distribution:
    """Make a distribution, with an indicator where it needs one; NumPyro calls this in place of the class."""
    fn: dist.Distribution = type.__call__(cls, *args, **kwargs)
    if isinstance(fn, _MIXTURES):
        parts = list(_parts(fn))
        unlike = len({type(plain_support(part.support)) for part in parts}) > 1
        for part in parts:
            if unlike or jax.tree.leaves(part.support):
                _keep_indicator(part)
        return fn
    if isinstance(fn, dist.TransformedDistribution) and not _is_image(fn):
        _keep_indicator(fn.base_dist)
        vars(fn).setdefault("_validate_sample", partial(_inside, fn))
        _keep_indicator(fn)
    if not isinstance(fn, _WRAPPERS) and _moves(fn.support):
        _keep_indicator(fn)
    return fn


def keep_indicators(fn: dist.Distribution) -> None:
    """Make a distribution, and those that it is made of, give values outside any support density zero.

    This is for data that were not compared with supports that are the same at all parameters.
    """
    _keep_indicator(fn)
    for part in _parts(fn):
        keep_indicators(part)


def kept_indicators(fn: dist.Distribution) -> list[dist.Distribution]:
    """Return those with an indicator among a distribution and the distributions that it is made of."""
    own = [fn] if vars(fn).get("_validate_args") else []
    return own + [one for part in _parts(fn) for one in kept_indicators(part)]


def _keep_indicator(fn: dist.Distribution) -> None:
    """Make a distribution give values outside its support density zero, unless the model itself decides."""
    while isinstance(fn, _WRAPPERS):
        fn = fn.base_dist
    vars(fn).setdefault("_validate_args", True)


def _moves(support: Any) -> bool:
    """Return whether bounds of a support are computed in the traced program, from data or parameters."""
    return any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(support))


def plain_support(support: Any) -> Any:
    """Return the constraint of single entries or events of which a constraint on several is made."""
    while hasattr(support, "base_constraint"):
        support = support.base_constraint
    return support


def map_onto(site: Mapping[str, Any]) -> Transform | None:
    """Return NumPyro's map from unconstrained coordinates to the support of a latent site; None if discrete.

    Raises
    ------
    TypeError
        If the distribution has no support, or NumPyro has no map onto it, as onto a sphere.
    """
    name, law, support = site["name"], type(site["fn"]).__name__, site["fn"].support
    if not isinstance(support, constraints.Constraint) or isinstance(support, _DEPENDENT):
        raise TypeError(
            f"site {name!r} is latent, and its distribution {law} states no support; set one in its class, "
            "as in support = numpyro.distributions.constraints.real"
        )
    if support.is_discrete:
        return None
    try:
        return biject_to(support)
    except NotImplementedError:
        kind = plain_support(support)
        remedy = "build it from sites with other supports, by numpyro.deterministic"
        if kind is constraints.sphere:
            size = site["fn"].event_shape[-1]
            remedy = f"sample it by sidebayes.sample_direction({name!r}, {size}), uniform a priori"
        raise TypeError(
            f"site {name!r} is latent, and NumPyro has no map from unconstrained coordinates onto its "
            f"support ({type(kind).__name__.strip('_')}); {remedy}"
        ) from None


def bounded_parameters(fn: dist.Distribution) -> Iterator[tuple[str, constraints.Constraint, Any]]:
    """Return real parameters that must lie within bounds, of a distribution and those that it is made of."""
    for name, within in fn.arg_constraints.items():
        bounded = hasattr(within, "lower_bound") or hasattr(within, "upper_bound")
        if bounded and not within.is_discrete and name in vars(fn):
            yield name, within, vars(fn)[name]
    for part in _parts(fn):
        yield from bounded_parameters(part)


def _parts(fn: dist.Distribution) -> Iterator[dist.Distribution]:
    """Return the distributions that one is made of, except those of labels."""
    for held in (held for name, held in vars(fn).items() if name not in _LABELS):
        for part in held if isinstance(held, list | tuple) else (held,):
            if isinstance(part, dist.Distribution):
                yield part


def _inside(fn: dist.TransformedDistribution, value: Array) -> Array:
    """Return which values lie in the image of the support of a transformed distribution's base."""
    at = value
    for transform in reversed(fn.transforms):
        at = transform.inv(at)
    mask = fn.base_dist.support(at)
    beyond = jnp.ndim(mask) - (jnp.ndim(value) - fn.event_dim)
    return mask.all(axis=tuple(range(-beyond, 0))) if beyond > 0 else mask


def _is_image(fn: dist.TransformedDistribution) -> bool:
    """Return whether the stated support of a transformed distribution is the image of that of its base.

    NumPyro states the range of the last transform, whatever its input: all real numbers for a shifted
    exponential distribution.
    """
    if type(fn).support is not dist.TransformedDistribution.support:
        return True
    reached = fn.base_dist.support
    for transform in fn.transforms:
        kinds = type(plain_support(reached)), type(plain_support(transform.domain))
        if not (issubclass(*kinds) or issubclass(*kinds[::-1])):
            return False
        reached = transform.codomain
    return True
