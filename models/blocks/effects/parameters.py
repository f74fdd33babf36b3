"""Parameters of a linear mixed model as one block: sites, units and starts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import Array
from jax.core import Tracer
from jax.typing import ArrayLike
from numpy.typing import NDArray
from numpyro.distributions import constraints
from numpyro.distributions.transforms import (
    AffineTransform,
    ComposeTransform,
    LowerCholeskyAffine,
    Transform,
)

from sidebayes.common.columns import ColumnsError
from sidebayes.common.copies import remark_on_copies
from sidebayes.common.magnitudes import listed, shown
from sidebayes.common.warnings import warn_user

from ..block import Expanded
from ..side_information.groups import Groups
from .densities.basis import least_squares, lower_basis
from .densities.structure import FactorUnits, Structure
from .identified import (
    ONE_SUBJECT,
    PRIOR_ALONE,
    SINGULAR,
    UNDETERMINED,
    covariance_is_determined,
    exact_fit,
    independent_columns,
    is_singular,
)
from .priors import EffectsPrior, inverse
from .updates import MixedUpdates

__all__ = ["MixedParameters", "mixed_parameters", "read_options"]

_SHARE = math.sqrt(0.5)
"""Starting standard deviation of noise and of random effects, relative to the residual one."""


class DataScales(NamedTuple):
    """Scales of the data: least-squares coefficients, weighted rows, typical factor and noise."""

    start: Any
    rows: Any
    factor: Any
    noise: Any


class MixedParameters(MixedUpdates, Expanded):
    """Fixed effects, covariance of the random effects and noise of a linear mixed model.

    Parameters
    ----------
    y : array_like, shape (num_rows,), or None
        Outcomes, whose spread about a least-squares fit sets the units for gradients.
    fixed : array_like, shape (num_rows, num_terms)
    random : array_like, shape (num_rows, num_effects)
    outputs : array_like, shape (num_rows, num_outputs), or None
        Indicators of the output that each row measures; None where there is one only.
    structure : Structure
    prior : EffectsPrior or None
        None is flat: maximum likelihood.
    subjects : Groups, optional
        Subjects of the rows, to check whether they determine the covariance under a flat prior.
    """

    of_terms: ClassVar[tuple[str, ...]] = ("coefficients",)
    """Roles of the sites of fixed effects."""

    derived: ClassVar[Mapping[str, str]] = {"correlation": "correlation"}

    def __init__(
        self,
        y: ArrayLike | None,
        fixed: ArrayLike,
        random: ArrayLike,
        outputs: ArrayLike | None,
        structure: Structure,
        prior: EffectsPrior | None,
        subjects: Groups | None = None,
    ) -> None:
        self.y, self.fixed, self.random, self.outputs = y, fixed, random, outputs
        self.structure, self.prior, self.subjects = structure, prior, subjects
        self.num_terms = jnp.shape(fixed)[1]
        self.num_outputs = 1 if outputs is None else jnp.shape(outputs)[1]
        if prior is not None:
            self._check_prior(prior)

    @property
    def random_map(self) -> Any:
        """Map from the random effects to those of the prior, shape (num_effects, num_effects)."""
        if self.prior is None:
            return np.eye(self.structure.size)
        return self.prior.map_of(self.structure)

    @property
    def factors(self) -> tuple[str, ...]:
        """All log-factors of `MixedEffects` and of `RestrictedEffects`."""
        own = ("precision", "shift", "cross", "fixed_precision", "fixed_shift")
        return (*own, "constant", "ungrouped")

    @property
    def has_update(self) -> bool:
        """Whether the prior is flat."""
        return self.prior is None

    @property
    def normal(self) -> tuple[Array, Array] | None:
        """Means and covariance factor in the prior of the fixed effects; None if it is flat."""
        return self._normal(np.arange(self.num_terms))

    def _normal(self, terms: NDArray[np.int64]) -> tuple[Array, Array] | None:
        """Prior means and covariance factor of some fixed effects."""
        if self.prior is None:
            return None
        mean, lower = self.prior.of_coefficients(terms)
        return jnp.asarray(mean), jnp.asarray(lower)

    def _law(self, terms: NDArray[np.int64]) -> dist.Distribution:
        """Prior of some fixed effects."""
        normal = self._normal(terms)
        if normal is None:
            return dist.ImproperUniform(constraints.real_vector, (), (len(terms),))
        return dist.MultivariateNormal(normal[0], scale_tril=normal[1])

    def coefficients(self) -> Array:
        """Sample the fixed effects, shape (num_terms,)."""
        fn = self._law(np.arange(self.num_terms))
        return self.declare("coefficients", "coefficients", fn, ["terms"])

    def scale_tril(self) -> Array:
        """Sample the Cholesky factor of the covariance of the random effects; record the covariance.

        Under a flat prior its entries are any real numbers, so that zero variances are interior
        points. The signs of its columns are then arbitrary, and draws get the signs of `canonical`.
        Under other priors no variance is zero, and the correlations are recorded as well.
        """
        root = self._factor()
        self._note(root)
        return root

    def _note(self, root: Array) -> None:
        """Record the covariance and its correlations, as one matrix or one per class."""
        size, covariance = self.structure.size, root @ root.mT
        with numpyro.plate("effects", size, dim=-2), numpyro.plate("effects_1", size):
            numpyro.deterministic("covariance", covariance)
            if self.prior is not None and max(self.structure.sizes) > 1:
                sd = jnp.sqrt(jnp.diagonal(covariance, axis1=-2, axis2=-1))
                scaled = covariance / (sd[..., :, None] * sd[..., None, :])
                # exactly 1, so that no rounding error looks like variation of draws
                numpyro.deterministic("correlation", jnp.where(jnp.eye(size) == 1, 1.0, scaled))

    @property
    def roles(self) -> tuple[str, ...]:  # type: ignore[override]
        """Roles of the sites, which depend on the prior."""
        correlations = map(self._correlation, range(len(self.structure.sizes)))
        return (*self.of_terms, "factor", "deviation", *correlations, "noise")

    def _correlation(self, number: int) -> str:
        """Name of the factor of the correlations of a block of effects."""
        alone = len(self.structure.sizes) == 1
        return "correlation_cholesky" if alone else f"correlation_cholesky_{number}"

    def _factor(self) -> Array:
        """Sample the factor of the covariance."""
        if self.prior is None:
            rows, _ = self.structure.entries
            flat = dist.ImproperUniform(constraints.real_vector, (), (len(rows),))
            entries = self.declare("factor", "factor", flat, ["entries"])
            return self.structure.matrix(entries)
        half = dist.HalfNormal(jnp.asarray(self.prior.deviation)).to_event(1)
        deviation = self.declare("deviation", "deviation", half, ["effects"])
        width = self.structure.size
        root = jnp.broadcast_to(jnp.eye(width), (*deviation.shape, width))
        for number, block in enumerate(self.structure.slices):
            size = block.stop - block.start
            if size > 1:
                name = self._correlation(number)
                alone = len(self.structure.sizes) == 1
                lkj = dist.LKJCholesky(size, self.prior.concentration)
                own = self.declare(name, name, lkj, ["effects", "effects_1"] if alone else ())
                root = root.at[..., block, block].set(own)
        return jnp.asarray(inverse(self.random_map)) @ (deviation[..., None] * root)

    def canonical(
        self, values: Mapping[str, NDArray]
    ) -> tuple[dict[str, NDArray], tuple[str, NDArray]]:
        """The Cholesky factor with non-negative diagonal; all signs give the same covariance."""
        if "factor" not in values:
            draws = np.shape(next(iter(values.values())))[:2]
            return {}, ("effects", np.ones((*draws, 1)))
        entries = np.asarray(values["factor"])
        rows, columns = self.structure.entries
        signs = np.where(entries[..., rows == columns] < 0, -1.0, 1.0)
        return {"factor": entries * signs[..., columns]}, ("effects", signs)

    def noise(self) -> Array:
        """Sample the standard deviation of the noise of every output, shape (num_outputs,)."""
        if self.prior is None:
            fn: dist.Distribution = dist.ImproperUniform(constraints.positive, (), ())
        else:
            fn = dist.HalfNormal(jnp.asarray(self.prior.noise))
        if self.outputs is None:
            return self.declare("noise", "noise", fn)[..., None]
        with numpyro.plate("outputs", self.num_outputs):
            return self.declare("noise", "noise", fn)

    def bijector(self, role: str, bijector: Transform) -> Transform:
        """Coordinates in units of the data, which do not depend on the units of any column."""
        units = self._units(jnp)
        if role == "coefficients":
            return self._affine(np.arange(self.num_terms))
        if role == "factor":
            return FactorUnits(units.factor, self.structure)
        if role == "deviation":
            scale = jnp.sqrt((units.factor**2).sum(axis=1))
        elif role == "noise":
            scale = units.noise if self.outputs is not None else units.noise[0]
        else:
            return bijector
        positive = AffineTransform(0.0, scale, constraints.positive)
        return ComposeTransform([bijector, positive])

    def _affine(self, terms: NDArray[np.int64]) -> Transform:
        """Coordinates of some of the coefficients."""
        units = self._units(jnp)
        root = lower_basis(jnp, units.rows[:, terms])
        return LowerCholeskyAffine(units.start[terms], root)

    def starts(
        self, value: Any, shapes: Mapping[str, tuple[int, ...]], seed: int, num_starts: int
    ) -> dict[str, Any]:
        """Least-squares coefficients, and half of the residual variance each for noise and effects."""
        if any(isinstance(data, Tracer) for data in (self.fixed, self.random, self.outputs)):
            return {}
        units = self._units(np, value)
        factor = _SHARE * units.factor
        found = {
            "coefficients": units.start,
            "noise": _SHARE * (units.noise if self.outputs is not None else units.noise[0]),
            "factor": factor[self.structure.entries],
            "deviation": np.sqrt((factor**2).sum(axis=1)),
        }
        eyes = {role: np.eye(shape[-1]) for role, shape in shapes.items() if role not in found}
        return {role: value for role, value in (found | eyes).items() if role in shapes}

    def check(self, name: str, value: Any) -> None:
        """Refuse data that leave no noise or, under a flat prior, do not determine coefficients.

        Warn if, under a flat prior, they leave only the covariance of the effects and the noise
        undetermined.
        """
        codes = None if self.subjects is None else self.subjects.codes
        if any(isinstance(own, Tracer) for own in (self.fixed, self.random, self.outputs, codes)):
            return
        if self.prior is None:
            basis, dependent = independent_columns(self.fixed)
            if dependent:
                raise ColumnsError(partial(_say_dependent, dependent), "fixed")
            if len(basis) == basis.shape[1]:
                raise ValueError(
                    f"fixed has as many columns as rows, {len(basis)}: no noise is left. Give fewer columns, "
                    "more rows, or a prior"
                )
        if said := exact_fit(name, value, self.fixed, self.random, codes, self.outputs):
            raise ValueError(said)
        if self.prior is None and (said := self._undetermined(UNDETERMINED)):
            warn_user(said)

    def _undetermined(self, otherwise: str) -> str | None:
        """Say that the rows do not determine the covariance; `otherwise` if there are several subjects."""
        if self.subjects is None:
            return None
        if np.ptp(np.asarray(self.subjects.codes)) == 0:
            return ONE_SUBJECT
        basis, _ = independent_columns(self.fixed)
        determined = covariance_is_determined(
            basis, self.random, self.subjects.codes, self.outputs, self.structure
        )
        return None if determined else otherwise

    def remark_on_data(self, name: str, value: Any, draws: Mapping[str, Any]) -> str | None:
        """Say that nearly all rows have a copy."""
        if isinstance(self.fixed, Tracer):
            return None
        codes = None if self.subjects is None else self.subjects.codes
        return remark_on_copies(name, value, self.fixed, self.random, self.outputs, codes)

    def remark(self, values: Mapping[str, Any]) -> str | None:
        """Say that the rows do not determine the covariance, or that it is singular at a mode."""
        single = np.shape(next(iter(values.values()), ()))[:2] == (1, 1)
        if isinstance(self.fixed, Tracer) or not (single or self.prior is None):
            return None
        if said := self._undetermined(UNDETERMINED if self.prior is None else PRIOR_ALONE):
            return said
        mode = {role: np.asarray(own)[0, 0] for role, own in values.items()} if single else {}
        return SINGULAR if single and self.at_boundary(mode) else None

    def at_boundary(self, values: Mapping[str, Any]) -> tuple[str, ...]:
        """Name the covariance if it has negligible spread along some direction."""
        if self.prior is not None:
            return ()
        root = self.structure.matrix(jnp.asarray(values["factor"]))
        singular = is_singular(
            self.random, np.asarray(root), np.asarray(values["noise"]), self.structure
        )
        return ("factor", "covariance") if singular else ()

    def _units(self, xp: Any, value: Any = None) -> DataScales:
        """Scales of the data, computed by NumPy or by JAX (`xp`)."""
        fixed, random = xp.asarray(self.fixed), xp.asarray(self.random)
        y = self.y if value is None else value
        y = xp.zeros(len(fixed)) if y is None else xp.asarray(y)
        outputs = xp.ones((len(fixed), 1)) if self.outputs is None else xp.asarray(self.outputs)
        basis = lower_basis(xp, fixed)
        start = basis @ least_squares(xp, y, fixed @ basis)
        start = xp.where(xp.isfinite(start), start, 0.0)
        squares = outputs.T @ (y - fixed @ start) ** 2 / xp.maximum(outputs.sum(axis=0), 1.0)
        noise = xp.where(squares > 0, xp.sqrt(squares), 1.0)  # ones where values are not numbers
        weight = xp.sqrt(outputs @ noise**-2.0)[:, None]
        random = weight * (random @ inverse(self.random_map))
        factor = lower_basis(xp, random, self.structure.blocks)
        return DataScales(start, weight * fixed, factor, noise)

    def _check_prior(self, prior: EffectsPrior) -> None:
        for name, wanted, what in (
            ("mean", self.num_terms, "columns of fixed effects"),
            ("deviation", self.structure.size, "columns of random effects"),
            ("noise", self.num_outputs, "outputs"),
        ):
            shape = np.shape(getattr(prior, name))
            if shape not in ((), (wanted,)):
                raise ValueError(
                    f"EffectsPrior({name}=...) has {shape[0]} numbers for {wanted} {what}; give one each"
                )


def _say_dependent(dependent: Sequence[int], columns: Sequence[str] | None) -> str:
    """Which columns of fixed effects depend on the others, and what to do about them."""
    own = [repr(columns[n]) for n in dependent] if columns else list(map(str, dependent))
    return (
        f"fixed has columns that depend linearly on the others, such as {listed(own)}; drop them, or pass "
        "a prior, which separates them"
    )


def mixed_parameters(
    y: ArrayLike | None,
    fixed: ArrayLike,
    random: ArrayLike,
    outputs: ArrayLike | None = None,
    *,
    covariance: str | tuple[int, ...] = "full",
    prior: str | EffectsPrior = "flat",
    subjects: Groups | None = None,
) -> MixedParameters:
    """Block of the parameters of a linear mixed model, from the options of a model.

    Parameters
    ----------
    y, fixed, random, outputs
        See `MixedParameters`.
    covariance : {"full", "diagonal"} or tuple of int
        Which random effects are correlated; see `Structure.read`.
    prior : {"flat"} or EffectsPrior
    subjects : Groups, optional
        See `MixedParameters`.

    Raises
    ------
    ValueError
        If an option is unknown, or `outputs` are not indicators.
    """
    structure, own = read_options(random, outputs, covariance, prior)
    return MixedParameters(y, fixed, random, outputs, structure, own, subjects)


def read_options(
    random: ArrayLike,
    outputs: ArrayLike | None,
    covariance: str | tuple[int, ...],
    prior: str | EffectsPrior,
) -> tuple[Structure, EffectsPrior | None]:
    """Structure of the covariance, and the prior (None if flat); see `mixed_parameters`."""
    if not isinstance(prior, EffectsPrior) and not (isinstance(prior, str) and prior == "flat"):
        raise ValueError(f"prior = {shown(prior)}; expected 'flat' or an EffectsPrior")
    if outputs is not None and not isinstance(outputs, Tracer):
        rows = np.asarray(outputs)
        odd = ~(np.isin(rows, (0, 1)).all(axis=1) & (rows.sum(axis=1) == 1))
        if odd.any():
            row = int(np.argmax(odd))
            raise ValueError(
                f"outputs[{row}] = {rows[row]}; expected one 1, for the output that the row measures, and "
                "0 for all others"
            )
        unused = np.flatnonzero(~rows.any(axis=0))
        if len(unused):
            raise ValueError(
                f"outputs[:, {unused[0]}] is of an output that no row measures; drop it"
            )
    structure = Structure.read(covariance, jnp.shape(random)[1])
    return structure, prior if isinstance(prior, EffectsPrior) else None
