"""Outcomes of a long table whose Gaussian random effects of groups are integrated out."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import Array
from jax.typing import ArrayLike
from numpyro.distributions import constraints

from ...collapsed import Collapsed, Fitted, NamedArray
from ...side_information.groups import Groups
from .basis import lower_basis
from .small import cholesky, forward_solve, inverse, log_determinant

__all__ = ["RandomEffects", "log_integrals", "moments", "named_effects", "precisions"]

_LOG_2PI = math.log(2 * math.pi)


class RandomEffects(Collapsed):
    r"""Outcome of a long table, with the random effects of its groups integrated out.

    Row r belongs to group g(r). Its outcome is (Laird and Ware 1982)

    .. math:: y_r = m_r + z_r^\top b_{g(r)} + \epsilon_r, \quad b_g = T u_g, \quad
              u_g \sim N(0, I_q), \quad \epsilon_r \sim N(0, \sigma_r^2),

    so that the outcomes of one group are jointly normal,
    :math:`y_g \sim N(m_g, Z_g T T^\top Z_g^\top + \mathrm{diag}(\sigma_g^2))`. No matrix of that
    size is formed: the effects are integrated out by the precisions of :math:`u_g`,
    :math:`I + T^\top Z_g^\top \mathrm{diag}(\sigma_g^{-2}) Z_g T`, of shape (q, q).

    The latent variables are the whitened effects u, so T is never inverted. It may be singular or
    zero; the density and all its derivatives stay finite. The density depends on T through :math:`T
    T^\top` alone. Its gradient in T therefore vanishes at T = 0, where no optimiser should start.
    Double precision is needed where effects are many times larger than the noise: rounding errors
    grow with the square of that ratio.

    Parameters
    ----------
    mean : array_like, shape (num_rows,)
        Mean m of every row without its random effect: the fixed effects. Kept as ``loc``.
    design : array_like, shape (num_rows, num_effects)
        Rows z: a column of ones for random intercepts, a covariate for random slopes.
    groups : Groups
        Group of each row.
    scale_tril : array_like, shape (num_effects, num_effects)
        Factor T of the covariance of the effects, triangular or not.
    noise : array_like, shape () or (num_rows,)
        Standard deviation :math:`\sigma`, positive.

    Raises
    ------
    ValueError
        If shapes disagree, or if a row belongs to no group. The latter cannot be detected in
        compiled code that takes the groups as an argument. There such rows are independent normals
        without random effect, and `by_unit` has no term for them.

    References
    ----------
    Laird and Ware (1982), Random-effects models for longitudinal data, Biometrics 38, 963-974.
    Lu (2008), PhD thesis, Oregon Health & Science University, for mixed effects of subjects.

    Examples
    --------
    Random intercepts of subjects::

        fn = RandomEffects(x @ beta, jnp.ones((len(x), 1)), Groups(subject),
                           scale_tril=tau * jnp.eye(1), noise=sigma)
        numpyro.sample("y", fn, obs=y)
    """

    arg_constraints: ClassVar[dict] = {
        "loc": constraints.real_vector,
        "design": constraints.real_matrix,
        "scale_tril": constraints.real_matrix,
        "noise": constraints.positive,
    }
    support = constraints.real_vector
    groups: Groups
    pytree_data_fields: ClassVar[tuple[str, ...]] = (
        "loc",
        "design",
        "groups",
        "scale_tril",
        "noise",
    )
    pytree_aux_fields = ("num_units",)

    def __init__(
        self,
        mean: ArrayLike,
        design: ArrayLike,
        groups: Groups,
        *,
        scale_tril: ArrayLike,
        noise: ArrayLike,
        validate_args: bool | None = None,
    ) -> None:
        self.loc, self.design = _floating(mean), _floating(design)
        self.scale_tril, self.noise = _floating(scale_tril), _floating(noise)
        self.groups, self.num_units = groups, groups.num_groups
        if self.loc.ndim != 1:
            raise ValueError(
                f"mean has shape {self.loc.shape}, expected (rows,); use jax.vmap for batches"
            )
        _check_rows(self.design, len(self.loc), self.scale_tril)
        _check_noise(self.noise, len(self.loc))
        if len(groups) != len(self.loc):
            raise ValueError(f"groups have {len(groups)} rows, the mean has {len(self.loc)}")
        lone = _concrete(groups.codes) < 0
        if lone.any():
            raise ValueError(
                f"row {int(np.argmax(lone))} belongs to no group; give every such row a group of "
                "its own, or leave it out"
            )
        super().__init__(event_shape=self.loc.shape, validate_args=validate_args)

    @property
    def mean(self) -> Array:
        """Marginal mean of every row, shape (num_rows,)."""
        return self.loc

    @property
    def variance(self) -> Array:
        """Marginal variance of every row, shape (num_rows,)."""
        effects = jnp.where(self._grouped[:, None], self.design @ self.scale_tril, 0.0)
        return (effects**2).sum(axis=-1) + self.noise**2

    @property
    def _grouped(self) -> Array:
        return jnp.asarray(self.groups.codes) >= 0

    def _by_group(self, terms: Array) -> Array:
        """Sum the terms of rows by group, shape (num_groups, ...)."""
        # a segment sum ignores the code -1, but elsewhere in JAX an index of -1 means the last
        # entry
        codes = jnp.where(self._grouped, jnp.asarray(self.groups.codes), self.num_units)
        return jax.ops.segment_sum(terms, codes, self.num_units)

    def log_factors(self, value: Array) -> dict[str, Array]:
        r"""Natural parameters of the whitened effects given the data.

        .. math:: \log p(y, u) = \sum_g \langle u_g u_g^\top, A_g \rangle + u_g^\top h_g + c_g

        Returns
        -------
        dict
            ``precision`` :math:`A_g`, minus half the posterior precision of :math:`u_g`, shape
            (num_groups, num_effects, num_effects); ``shift`` :math:`h_g`, shape (num_groups,
            num_effects); ``constant`` :math:`c_g`, shape (num_groups,); ``ungrouped``, the log
            density of rows of no group, shape ().

        Raises
        ------
        ValueError
            If the value is not one outcome per row.
        """
        self._check_value(value)
        residual, weight = jnp.asarray(value) - self.loc, self.noise**-2
        basis = lower_basis(jnp, self.design)
        design, factor = self.design @ basis, forward_solve(basis, self.scale_tril)
        # products of the design alone come first, so that loops over parameters sum them only once
        weighted = design * weight[:, None] if weight.ndim else design
        gram = self._by_group(weighted[:, :, None] * design[:, None, :])
        cross = self._by_group(weighted * residual[:, None])
        if not weight.ndim:
            gram, cross = gram * weight, cross * weight
        size = design.shape[-1]
        rows = dist.Normal(0.0, self.noise).log_prob(residual)
        return {
            "precision": -0.5 * precisions(gram, factor),
            "shift": cross @ factor,
            "constant": self._by_group(rows) - 0.5 * size * _LOG_2PI,
            "ungrouped": jnp.where(self._grouped, 0.0, rows).sum(),
        }

    def _check_value(self, value: Array) -> None:
        if jnp.shape(value) != self.event_shape:
            raise ValueError(
                f"value has shape {jnp.shape(value)}, expected {self.event_shape}; use jax.vmap for "
                "batches"
            )

    def log_partition(self, factors: dict[str, Array]) -> Array:
        r"""Log integral over all whitened effects, shape ().

        .. math:: \sum_g c_g + \tfrac{q}{2} \log 2\pi - \tfrac12 \log|P_g|
                  + \tfrac12 h_g^\top P_g^{-1} h_g, \qquad P_g = -2 A_g

        It is convex in the factors. Its gradient is :math:`E[u_g u_g^\top]`, :math:`E[u_g]` and
        ones.
        """
        return log_integrals(factors).sum() + factors["ungrouped"]

    def by_unit(self, value: Array) -> Array:
        """Log density of the outcomes of every group, shape (num_groups,)."""
        return log_integrals(self.log_factors(value))

    def posterior(self, value: Array) -> dict[str, NamedArray]:
        """Posterior moments of the unwhitened effects b.

        Returns
        -------
        dict
            ``effects`` (num_groups, num_effects), the best linear unbiased predictors at these
            parameters; ``effects_covariance`` (num_groups, num_effects, num_effects).
        """
        center, root = moments(self.log_factors(value))
        spread = root @ self.scale_tril.T
        return named_effects(center @ self.scale_tril.T, spread.mT @ spread)

    def draw(self, rng_key: Array, value: Array) -> Array:
        """Draw whitened effects given data and parameters, shape (num_groups, num_effects)."""
        center, root = moments(self.log_factors(value))
        white = jax.random.normal(rng_key, center.shape, center.dtype)
        return center + jnp.einsum("gji,gj->gi", root, white)

    def draw_known(self, rng_key: Array, value: Array) -> Array:
        """Draw whitened effects given everything known about the groups, for predictions; see `draw`."""
        return self.draw(rng_key, value)

    def statistic(self, latent: Array) -> dict[str, Array]:
        """Sufficient statistic of whitened effects (num_groups, num_effects)."""
        return {
            "precision": latent[:, :, None] * latent[:, None, :],
            "shift": latent,
            "constant": jnp.ones(latent.shape[:1], latent.dtype),
            "ungrouped": jnp.ones((), latent.dtype),
        }

    def mode(self, value: Array) -> Array:
        """Most probable whitened effects, their posterior mean, shape (num_groups, num_effects)."""
        return moments(self.log_factors(value))[0]

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        """Draw effects, then outcomes, shape (*sample_shape, num_rows)."""
        key_effects, key_noise = jax.random.split(key)
        shape = (*sample_shape, self.num_units, self.design.shape[-1])
        return self._outcomes(key_noise, jax.random.normal(key_effects, shape, self.design.dtype))

    def _outcomes(self, key: Array, white: Array, loc: Array | None = None) -> Array:
        """Draw outcomes given whitened effects, shape (..., num_groups, num_effects), about a mean."""
        by_row = (white @ self.scale_tril.T)[..., jnp.asarray(self.groups.codes), :]
        signal = jnp.where(self._grouped, (by_row * self.design).sum(axis=-1), 0.0)
        noise = jax.random.normal(key, (*white.shape[:-2], *self.event_shape), self.loc.dtype)
        return (self.loc if loc is None else loc) + signal + self.noise * noise

    def draw_data(self, rng_key: Array, fitted: Fitted | None = None) -> Array:
        r"""Draw effects, then outcomes, shape (num_rows,).

        Rows of one group share its effect. With the design and the moments of the fitted data, for
        a fitted group g,

        .. math:: E[y_r] = m_r + z_r^\top T E[u_g \mid y], \qquad \mathrm{Cov}[y_r, y_s] =
                  z_r^\top T \mathrm{Cov}[u_g \mid y] T^\top z_s + [r = s] \sigma_r^2,

        and for a new group the same with mean 0 and covariance I of :math:`u_g`.
        """
        key_effects, key_noise = jax.random.split(rng_key)
        return self._outcomes(key_noise, self._effects(key_effects, fitted))

    def _effects(self, key: Array, fitted: Fitted | None) -> Array:
        """Draw whitened effects of every group; those of fitted groups are drawn given their data."""
        key_fitted, key_new = jax.random.split(key)
        shape = self.num_units, self.design.shape[-1]
        white = jax.random.normal(key_new, shape, self.design.dtype)
        if fitted is None:
            return white
        own = fitted.fn.draw_known(key_fitted, fitted.value)  # type: ignore[attr-defined]
        return jnp.where(fitted.codes[:, None] < 0, white, own[fitted.codes])


def precisions(gram: Array, factor: Array) -> Array:
    """Posterior precisions of the whitened effects, from products of columns and the effects' factor."""
    return jnp.eye(gram.shape[-1], dtype=gram.dtype) + factor.T @ gram @ factor


def log_integrals(factors: dict[str, Array]) -> Array:
    """Log integral over the whitened effects of each group, shape (num_groups, ...)."""
    lower, shift = cholesky(-2.0 * factors["precision"]), factors["shift"]
    white = forward_solve(lower, shift[..., None])[..., 0]
    size = shift.shape[-1]
    total = factors["constant"] + 0.5 * (size * _LOG_2PI + (white**2).sum(axis=-1))
    return total - log_determinant(lower)


def moments(factors: dict[str, Array]) -> tuple[Array, Array]:
    """Posterior means of u, and inverse Cholesky factors R of the precisions: Cov[u] = R'R."""
    lower = cholesky(-2.0 * factors["precision"])
    root = inverse(lower)
    white = (root * factors["shift"][..., None, :]).sum(axis=-1)
    return (root * white[..., None]).sum(axis=-2), root


def named_effects(mean: Array, covariance: Array) -> dict[str, NamedArray]:
    """Moments of random effects; their axis takes the names of the data's dimension ``effects``."""
    axes = "points", "effect", "effect_1"
    return {
        "effects": NamedArray(axes[:2], mean),
        "effects_covariance": NamedArray(axes, covariance),
    }


def _floating(array: ArrayLike) -> Array:
    array = jnp.asarray(array)
    return array.astype(jnp.result_type(float, array))


def _concrete(codes: Any) -> np.ndarray:
    """Codes on the host; an empty array if they are traced."""
    return np.zeros(0, int) if isinstance(codes, jax.core.Tracer) else np.asarray(codes)


def _check_rows(design: Array, num_rows: int, scale_tril: Array) -> None:
    if design.ndim != 2 or len(design) != num_rows:
        raise ValueError(
            f"design has shape {design.shape}, expected ({num_rows}, effects); write design[:, None] "
            "for one effect"
        )
    size = design.shape[1]
    if scale_tril.shape != (size, size):
        raise ValueError(
            f"scale_tril has shape {scale_tril.shape}, expected {(size, size)} for {size} effects"
        )


def _check_noise(noise: Array, num_rows: int) -> None:
    if noise.shape not in ((), (num_rows,)):
        raise ValueError(f"noise has shape {noise.shape}, expected () or ({num_rows},)")
