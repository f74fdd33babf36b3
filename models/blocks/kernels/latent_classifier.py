"""Class probabilities from latent functions of the features, as a NumPyro distribution."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import Array
from numpy.typing import NDArray
from numpyro.distributions import constraints

from sidebayes.common.warnings import warn_user

from ..mixtures.data_units import remark_on_units

__all__ = ["LatentClassifier", "warn_of_offset"]

_OFFSET = 0.8
"""Share of the mean diagonal of a kernel that the mean of the points may account for."""


def warn_of_offset(data: Mapping[str, Any]) -> None:
    """Warn about features ``x`` that are far from zero relative to their spread, if there are links.

    Raises
    ------
    ValueError
        If all are zero.
    """
    x, links = data.get("x"), data.get("links")
    if x is None or not links:
        return
    table = np.asarray(x, float)
    if not table.any():
        raise ValueError(
            "x is zero at all points, where all latent functions are zero: it tells no points apart; pass "
            "features that vary"
        )
    if (said := _offset(table)) is not None:
        warn_user(said)


def _offset(table: NDArray) -> str | None:
    """A remark if rows are far from zero relative to their spread."""
    total = float(np.square(table).sum(axis=1).mean())
    offset = float(np.square(table.mean(axis=0)).sum())
    if offset <= _OFFSET * total:
        return None
    return (
        f"x lies far from zero: {offset / total:.0%} of its mean square is that of its mean. Latent "
        "functions are linear in x and zero at zero, so that they are nearly the same at all points; "
        "pass x - x.mean(axis=0), each column in units of its deviation, or features of a kernel"
    )


class LatentClassifier(dist.Distribution):
    r"""Probability of each class given a row of features, in place of the row's density.

    A discriminative model leaves the density of features unspecified. Up to that constant, class
    and features have the joint density :math:`P(z = m \mid x)`, which here replaces :math:`p(x \mid
    z = m)`, with all mixing weights equal to one.

    Parameters
    ----------
    coefficients : Array, shape (num_clusters, num_features)
        Coefficients of the latent functions; the probabilities are their softmax (Lu 2008, eq.
        4.1).
    """

    arg_constraints: ClassVar[dict] = {}
    support = constraints.real_vector
    pytree_data_fields = ("coefficients",)
    is_density: ClassVar[bool] = False

    def __init__(self, coefficients: Array, *, validate_args: bool | None = None) -> None:
        self.coefficients = coefficients
        shape = jnp.shape(coefficients)
        super().__init__(shape[:1], shape[1:], validate_args=validate_args)

    def log_prob(self, value: Array) -> Array:
        """Log-probabilities of the classes at rows of shape (num_points, 1, num_features)."""
        latent = jnp.squeeze(value, -2) @ self.coefficients.T
        return jax.nn.log_softmax(latent, axis=-1)

    def remark_on_data(self, name: str, value: Any, draws: Mapping[str, Any]) -> str | None:
        """Say that features lie far from zero, or that their units determine which functions are probable."""
        table = np.asarray(value, float)
        return _offset(table) or remark_on_units("x", table)
