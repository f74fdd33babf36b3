"""Effects of covariates of individuals on the coordinates of their shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import Array
from jax.core import Tracer
from jax.scipy.linalg import cho_solve, solve_triangular
from jax.typing import ArrayLike
from numpy.typing import NDArray

from sidebayes.common.warnings import warn_user

from ..block import Block, Observation
from ..mixtures.data_units import data_units, fitted_statistic

__all__ = ["Slopes", "check_covariates", "covariate_effects", "warn_of_nothing_left"]

_WIDTH = 2.5
"""Prior standard deviation of a standardised slope, in those of a coordinate."""

_SAME = 1e-9
"""Deviation from a group's mean, in standard deviations of a column, that counts as zero."""


def covariate_effects(covariates: ArrayLike | None, coordinates: Array | None) -> Array | float:
    r"""Sample slopes; return the effects of the covariates on the coordinates of each individual.

    The site ``standard_slopes`` is the change per standard deviation of a covariate, normal about
    zero with 2.5 standard deviations of the coordinate; ``slopes``, shape (num_terms,
    num_coordinates), is recorded per unit. Covariates are centred at their means in the fitted
    data.

    Parameters
    ----------
    covariates : array_like, shape (num_subjects, num_terms), or None
    coordinates : Array, shape (num_subjects, num_coordinates), or None
        The prior takes its units from the coordinates, which are required if there are covariates.

    Returns
    -------
    Array, shape (num_subjects, num_coordinates), or 0.0 without covariates

    Raises
    ------
    ValueError
        If there are covariates and no coordinates, or a term is constant or a linear function of others.
    """
    if covariates is None:
        return 0.0
    if coordinates is None:
        raise ValueError(
            "covariates need x, whose spread is the unit of their effects; leave them out"
        )
    _refuse_collinear(covariates)
    table = jnp.asarray(covariates)
    mean, unit = data_units(table, table.shape[1])
    mean = fitted_statistic("covariate_mean", mean)
    unit = fitted_statistic("covariate_sd", unit)
    spread = fitted_statistic("coordinate_sd", data_units(coordinates, coordinates.shape[1])[1])
    standard = Slopes((table - mean) / unit, _WIDTH * spread).sample()
    slopes = numpyro.deterministic("slopes", standard / unit[:, None])
    return (table - mean) @ slopes


class Slopes(Block):
    r"""Slopes of rows in covariates, common to all components, with independent normal priors about zero.

    The observed site has the rows minus the effects of the covariates. Given labels, means and
    covariances the slopes :math:`\beta` are normal; with responsibilities r, the prior variances v
    of a column, and :math:`\Lambda_g` the precision of a component,

    .. math:: \sum_{ig} r_{ig} c_i c_i^\top \otimes \Lambda_g + I \otimes \text{diag}(v)^{-1}

    is their precision. Without the prior the mode is the generalised least-squares estimate
    (Zellner 1962, J. Am. Stat. Assoc. 57, 348-368).

    Parameters
    ----------
    table : Array, shape (num_rows, num_terms)
        Covariates.
    deviation : Array, shape (num_features,)
        Prior standard deviation of the slopes of each column of the rows.
    """

    factor: ClassVar[str] = "unary"
    roles: ClassVar[tuple[str, ...]] = ("slopes",)

    def __init__(self, table: Array, deviation: Array) -> None:
        self.table, self.deviation = table, deviation
        self.slopes: Array
        """Current values."""

    def sample(self) -> Array:
        """Sample the slopes, shape (num_terms, num_features)."""
        size = self.table.shape[1], len(self.deviation)
        prior = dist.Normal(0.0, jnp.broadcast_to(self.deviation, size)).to_event(2)
        self.slopes = self.declare("slopes", "standard_slopes", prior, ("terms", "features"))
        return self.slopes

    def statistics(self, observation: Observation) -> _Products:
        """Products of covariates with themselves and with rows, by component."""
        member = observation.expected["unary"]
        rows = jnp.asarray(observation.value) + self.table @ self.slopes
        own = jnp.einsum("ig,ip->gpi", member, self.table)
        return _Products(own.sum(axis=2), own @ self.table, own @ rows)

    def update(self, statistics: _Products, sources: Sequence[Any]) -> _Conditional:
        """Full conditional of the slopes, as one vector."""
        (fn,) = sources
        mean, precision = fn.components.mean, _precision(fn.components)
        apart = statistics.rows - statistics.first[:, :, None] * mean[:, None]
        pull = jnp.einsum("gpj,gjk->pk", apart, precision).ravel()
        bend = jnp.einsum("gpq,gjk->pjqk", statistics.square, precision)
        prior = jnp.tile(self.deviation**-2.0, self.table.shape[1])
        root = jnp.linalg.cholesky(bend.reshape(len(pull), -1) + jnp.diag(prior))
        return _Conditional(cho_solve((root, True), pull), root)

    def mode(self, found: _Conditional, values: Mapping[str, Array]) -> dict[str, Array]:
        """Slopes of generalised least squares, shrunk by the prior."""
        return {"slopes": found.mean.reshape(self.slopes.shape)}

    def draw(self, rng_key: Array, found: _Conditional) -> dict[str, Array]:
        """Draw the slopes."""
        noise = jax.random.normal(rng_key, found.mean.shape)
        moved = solve_triangular(found.root, noise, lower=True, trans=1)
        return {"slopes": (found.mean + moved).reshape(self.slopes.shape)}

    def log_density(self, found: _Conditional, values: Mapping[str, Array]) -> Array:
        """Log density of slopes."""
        white = (values["slopes"].ravel() - found.mean) @ found.root
        log_det = jnp.log(jnp.diagonal(found.root)).sum()
        return log_det - 0.5 * (white @ white + len(white) * jnp.log(2 * jnp.pi))


class _Conditional(NamedTuple):
    """Normal law of the slopes, as a vector: its mean, and the Cholesky factor of its precision."""

    mean: Array
    root: Array


class _Products(NamedTuple):
    """Sums over rows by component: of covariates, of their products, and of products with rows."""

    first: Array
    square: Array
    rows: Array


def _precision(components: dist.Distribution) -> Array:
    """Inverse covariance of each component."""
    mean = components.mean
    eye = jnp.eye(mean.shape[-1])
    if isinstance(components, dist.MultivariateNormal):
        scale_tril = components.scale_tril
        inverse: Array = cho_solve((scale_tril, True), jnp.broadcast_to(eye, scale_tril.shape))
    else:
        inverse = eye / components.variance[..., None]
    return jnp.broadcast_to(inverse, (*mean.shape, mean.shape[-1]))


def _refuse_collinear(covariates: ArrayLike) -> None:
    """Refuse terms whose slopes the data do not determine."""
    if isinstance(covariates, Tracer):
        return
    table = np.asarray(covariates, float)
    centred = table - table.mean(axis=0)
    constant = np.flatnonzero(np.abs(centred).max(axis=0) <= 1e-9 * np.abs(table).max(axis=0))
    if len(constant):
        raise ValueError(
            f"covariates are constant in column {constant[0]}; leave it out: group means are the intercept"
        )
    rank = np.linalg.matrix_rank(centred / centred.std(axis=0), rtol=1e-9)
    if rank < table.shape[1]:
        raise ValueError(
            f"covariates have {table.shape[1]} columns, centred of rank {rank}: some are linear functions of "
            "others, and have no slopes of their own; leave them out (of all indicators of a factor, one)"
        )


def check_covariates(data: Mapping[str, Any]) -> None:
    """Warn about covariates whose effects are confounded with differences between groups.

    These are columns that do not vary, alone or together, within the groups of individuals whose
    group is known. There is no warning if there are as few individuals as columns.

    Parameters
    ----------
    data : mapping
        Data of `hierarchical_shape` by name; uses ``covariates`` and ``known``.

    Warns
    -----
    SideBayesWarning
        Names the columns that are constant in each group.
    """
    if data.get("known") is None or data.get("covariates") is None:
        return
    table, values = np.asarray(data["covariates"], float), _known_groups(data["known"])
    members = values[values >= 0] == np.unique(values[values >= 0])[:, None]
    if len(members) < 2 or members.shape[1] - len(members) <= table.shape[1]:
        return
    table = table[values >= 0]
    spread = table.std(axis=0)
    table = table[:, spread > 0] / spread[spread > 0]
    within = table - members.T @ (members @ table / members.sum(axis=1, keepdims=True))
    if np.linalg.matrix_rank(within, tol=_SAME * np.sqrt(len(table))) == table.shape[1]:
        return
    still = np.flatnonzero(spread > 0)[np.abs(within).max(axis=0) < _SAME].tolist()
    which = (
        f"columns {still} are constant" if still else "some of their columns together do not vary"
    )
    warn_user(
        f"covariates repeat the known groups: {which} within each, so that their slopes and the differences "
        "between groups cannot be told apart, and the prior alone divides them; leave the columns out, or "
        "known"
    )


def _known_groups(known: Any) -> NDArray[np.int64]:
    """Group of each individual; -1 if more than one is admissible."""
    values = np.asarray(known.values)
    return (
        values if values.ndim == 1 else np.where(values.sum(axis=1) == 1, values.argmax(axis=1), -1)
    )


def warn_of_nothing_left(data: Mapping[str, Any]) -> None:
    """Warn if groups and covariates leave no residual variation of the individuals.

    This is so if each individual is known to be alone in its group, or if there are no more
    individuals than groups and covariates together.

    Parameters
    ----------
    data : mapping
        Data of `hierarchical_shape` by name; uses ``subjects``, ``known`` and ``covariates``.

    Warns
    -----
    SideBayesWarning
    """
    covariates, known = data.get("covariates"), data.get("known")
    number, groups = data["subjects"].num_groups, 1
    columns = 0 if covariates is None else np.asarray(covariates).shape[1]
    if known is not None and (_known_groups(known) >= 0).all():
        groups = len(np.unique(_known_groups(known)))
    if groups + columns >= number > 1:
        given = f" and {columns} covariates" * (columns > 0)
        warn_user(
            f"{groups} groups{given} leave nothing of {number} individuals unexplained, so that the variance "
            "within groups is that of the prior alone; give more individuals, or fewer groups or covariates"
        )
