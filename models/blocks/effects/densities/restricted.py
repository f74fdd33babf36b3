"""Outcomes of a linear mixed model whose fixed effects are integrated out as well: REML."""

from __future__ import annotations

import math
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from ...collapsed import Fitted, NamedArray
from ...side_information.groups import Groups
from .marginal import Weighted, by_output, by_row, weighted
from .random_effects import RandomEffects, named_effects, precisions
from .small import cholesky, forward_solve, inverse, log_determinant
from .sums import RowSums, row_sums

__all__ = ["LatentEffects", "RestrictedEffects"]

_LOG_2PI = math.log(2 * math.pi)


class LatentEffects(NamedTuple):
    """Latent variables: whitened ``effects`` (num_groups, num_effects), and ``move`` (num_terms,).

    The latter are deviations of the fixed effects from an ordinary least-squares fit to the data,
    in the basis of their columns; see `RowSums`.
    """

    effects: Array
    move: Array


class _Solved(NamedTuple):
    """Factors with the whitened effects integrated out.

    ``lower`` are the Cholesky factors of the groups' precisions, ``half`` the shifts and ``slope``
    the cross terms divided by them; ``root`` is the Cholesky factor of the precision of the fixed
    effects, ``height`` their linear term divided by it.
    """

    lower: Array
    half: Array
    slope: Array
    root: Array
    height: Array


class RestrictedEffects(RandomEffects):
    r"""Outcomes of a linear mixed model, with fixed and random effects integrated out.

    .. math:: y \mid \beta \sim \text{RandomEffects}(X \beta, \dots), \qquad
              \beta \sim N(m, S S^\top) \text{ or flat}

    Under the flat prior the density is the restricted likelihood (Laird and Ware 1982),

    .. math:: \log p(y) = \ell(\hat\beta) - \tfrac12 \log|A^{-1}| + \tfrac p2 \log 2\pi, \qquad
              A = \Big(\sum_g X_g^\top \Sigma_g^{-1} X_g\Big)^{-1},

    whose maximum over variances is the REML estimate; :math:`\hat\beta` and A, the mean and the
    covariance of :math:`\beta` given the data, are its estimates by generalised least squares.

    Given variances the groups are not independent here, because they share :math:`\beta`. `by_unit`
    returns the density of the outcomes of each group given those of all others.

    Parameters
    ----------
    fixed : array_like, shape (num_rows, num_terms)
        Columns X of the fixed effects; under a flat prior they must be linearly independent.
    random : array_like, shape (num_rows, num_effects)
    groups : Groups
    scale_tril : array_like, shape (num_effects, num_effects)
    noise : array_like, shape () or (num_outputs,)
    outputs : array_like, shape (num_rows, num_outputs), optional
        Indicators of the output that each row measures; None where there is one only.
    prior : tuple of array_like, optional
        Means m of the fixed effects, shape (num_terms,), and lower triangular factor S of their
        covariance, (num_terms, num_terms); None is flat.
    """

    arg_constraints: ClassVar[dict] = {}
    pytree_data_fields: ClassVar[tuple[str, ...]] = ("fixed", "deviations", "outputs", "prior")
    has_independent_units = False

    def __init__(
        self,
        fixed: ArrayLike,
        random: ArrayLike,
        groups: Groups,
        *,
        scale_tril: ArrayLike,
        noise: ArrayLike,
        outputs: ArrayLike | None = None,
        prior: tuple[ArrayLike, ArrayLike] | None = None,
        validate_args: bool | None = None,
    ) -> None:
        self.outputs = None if outputs is None else jnp.asarray(outputs)
        self.fixed, self.deviations = jnp.asarray(fixed), by_output(noise, self.outputs)
        self.prior = None if prior is None else tuple(map(jnp.asarray, prior))
        mean = jnp.zeros(self.fixed.shape[1]) if self.prior is None else self.prior[0]
        super().__init__(
            self.fixed @ mean,
            random,
            groups,
            scale_tril=scale_tril,
            noise=by_row(self.deviations, self.outputs),
            validate_args=validate_args,
        )

    @property
    def variance(self) -> Array:
        """Marginal variance of every row, infinite under a flat prior; shape (num_rows,)."""
        if self.prior is None:
            return jnp.full(self.event_shape, jnp.inf)
        return super().variance + ((self.fixed @ self.prior[1]) ** 2).sum(axis=-1)

    def log_factors(self, value: Array) -> dict[str, Array]:
        r"""Natural parameters of whitened effects u and fixed effects :math:`\delta`.

        The latter are relative to an ordinary least-squares fit b of all rows, both in a basis B of the
        columns: :math:`\beta = B (b + \delta)`.

        .. math:: \log p(y, u, \delta) = \sum_g (\langle u_g u_g^\top, A_g \rangle
                  + u_g^\top h_g + u_g^\top C_g \delta) + \langle \delta \delta^\top, F \rangle
                  + \delta^\top f + c

        Returns
        -------
        dict
            ``precision`` A, shape (num_groups, num_effects, num_effects); ``shift`` h (num_groups,
            num_effects); ``cross`` C (num_groups, num_effects, num_terms); ``fixed_precision`` F
            (num_terms, num_terms); ``fixed_shift`` f (num_terms,); ``constant`` c, shape ().
        """
        self._check_value(value)
        return self._factors(self._sums(value))

    def _sums(self, value: Array) -> RowSums:
        return row_sums(jnp.asarray(value), self.fixed, self.design, self.groups, self.outputs)

    def _factors(self, sums: RowSums) -> dict[str, Array]:
        found: Weighted = weighted(sums, self.deviations)
        precision, shift = found.fixed, found.slope
        constant = found.constant + log_determinant(sums.terms)
        if self.prior is not None:
            mean, lower = self.prior
            white = forward_solve(lower, sums.terms)
            away = forward_solve(lower, mean[:, None])[:, 0] - white @ sums.start
            precision, shift = precision + white.T @ white, shift + white.T @ away
            constant = constant - 0.5 * away @ away - log_determinant(lower)
            constant = constant - 0.5 * len(mean) * _LOG_2PI
        size = self.num_units * self.design.shape[-1]
        factor = forward_solve(sums.effects, self.scale_tril)
        return {
            "precision": -0.5 * precisions(found.random, factor),
            "shift": found.shift @ factor,
            "cross": -jnp.einsum("ij,gik->gjk", factor, found.cross),
            "fixed_precision": -0.5 * precision,
            "fixed_shift": shift,
            "constant": constant - 0.5 * size * _LOG_2PI,
        }

    def log_partition(self, factors: dict[str, Array]) -> Array:
        """Log integral over whitened and fixed effects, shape (); convex in the factors."""
        found = _solved(factors)
        groups = 0.5 * (found.half**2).sum() - log_determinant(found.lower).sum()
        fixed = 0.5 * (found.height**2).sum() - log_determinant(found.root)
        latent = factors["shift"].size + len(found.height)
        return factors["constant"] + groups + fixed + 0.5 * latent * _LOG_2PI

    def by_unit(self, value: Array) -> Array:
        """Log density of the outcomes of each group given those of all others, (num_groups,).

        Leave-one-group-out by importance weights needs these terms (Bürkner, Gabry and Vehtari
        2021). They do not add up to `log_prob`. Under a flat prior they are NaN for a group without
        which the others do not determine all fixed effects.
        """
        value = jnp.asarray(value)
        sums = self._sums(value)
        found = _solved(self._factors(sums))
        fixed = self.fixed @ sums.terms
        residual = (value - fixed @ sums.start) / self.noise
        scaled = fixed / jnp.broadcast_to(self.noise, residual.shape)[:, None]
        log_noise = jnp.broadcast_to(jnp.log(self.noise), residual.shape)
        own = -0.5 * residual**2 - log_noise - 0.5 * _LOG_2PI
        half, slope = found.half, found.slope
        terms = self._by_group(own) + 0.5 * (half**2).sum(axis=-1) - log_determinant(found.lower)
        # the others' information about the fixed effects, without the group's own contribution
        share = self._by_group(scaled[:, :, None] * scaled[:, None, :])
        share = share - jnp.einsum("gqi,gqj->gij", slope, slope)
        pull = self._by_group(scaled * residual[:, None]) + jnp.einsum("gqi,gq->gi", slope, half)
        root = cholesky(found.root @ found.root.T - share)
        linear = found.root @ found.height - pull
        height = forward_solve(root, linear[..., None])[..., 0]
        with_all = 0.5 * (found.height**2).sum() - log_determinant(found.root)
        return terms + with_all - 0.5 * (height**2).sum(axis=-1) + log_determinant(root)

    def posterior(self, value: Array) -> dict[str, NamedArray]:
        """Posterior moments of fixed effects and of unwhitened random effects.

        Returns
        -------
        dict
            ``effects`` (num_groups, num_effects) and ``effects_covariance``, which allows for the
            uncertainty of the fixed effects; ``coefficients`` (num_terms,) and
            ``coefficients_covariance``: generalised least squares under a flat prior.
        """
        sums = self._sums(value)
        found = _solved(self._factors(sums))
        mean = _latent(found, jnp.zeros_like(found.height), jnp.zeros_like(found.half))
        root = inverse(found.root)
        own = inverse(found.lower) @ self.scale_tril.T
        through = jnp.einsum("gji,gjk->gik", own, found.slope @ root.T)
        covariance = own.mT @ own + through @ through.mT
        spread = root @ sums.terms.T
        return named_effects(mean.effects @ self.scale_tril.T, covariance) | {
            "coefficients": NamedArray(("terms",), sums.terms @ (sums.start + mean.move)),
            "coefficients_covariance": NamedArray(("terms", "terms_1"), spread.T @ spread),
        }

    def draw(self, rng_key: Array, value: Array) -> LatentEffects:  # type: ignore[override]
        """Draw fixed effects, then whitened effects, given data and parameters."""
        found = _solved(self.log_factors(value))
        key_fixed, key_effects = jax.random.split(rng_key)
        move = jax.random.normal(key_fixed, found.height.shape, found.height.dtype)
        white = jax.random.normal(key_effects, found.half.shape, found.half.dtype)
        return _latent(found, move, white)

    def statistic(self, latent: LatentEffects) -> dict[str, Array]:  # type: ignore[override]
        """Sufficient statistic of whitened and fixed effects."""
        effects, move = latent
        return {
            "precision": effects[:, :, None] * effects[:, None, :],
            "shift": effects,
            "cross": effects[:, :, None] * move,
            "fixed_precision": move[:, None] * move,
            "fixed_shift": move,
            "constant": jnp.ones((), effects.dtype),
        }

    def mode(self, value: Array) -> LatentEffects:  # type: ignore[override]
        """Most probable effects of both kinds, their posterior mean."""
        found = _solved(self.log_factors(value))
        return _latent(found, jnp.zeros_like(found.height), jnp.zeros_like(found.half))

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        """Draw effects of both kinds, then outcomes, shape (*sample_shape, num_rows).

        Raises
        ------
        ValueError
            Under a flat prior, from which nothing can be drawn.
        """
        key_fixed, key_white, key_noise = jax.random.split(key, 3)
        white = jax.random.normal(
            key_white, (*sample_shape, self.num_units, self.design.shape[-1]), self.design.dtype
        )
        loc = self._prior_draw(key_fixed, sample_shape) @ self.fixed.T
        return self._outcomes(key_noise, white, loc)

    def draw_data(self, rng_key: Array, fitted: Fitted | None = None) -> Array:
        """Draw effects of both kinds, then outcomes, shape (num_rows,).

        Fixed effects, and random effects of fitted groups, are drawn jointly given the fitted data.
        """
        if fitted is None:
            return self.sample(rng_key)
        key_fitted, key_new, key_noise = jax.random.split(rng_key, 3)
        drawn = fitted.fn.draw(key_fitted, fitted.value)
        sums = fitted.fn._sums(fitted.value)  # type: ignore[attr-defined]
        shape = self.num_units, self.design.shape[-1]
        white = jax.random.normal(key_new, shape, self.design.dtype)
        white = jnp.where(fitted.codes[:, None] < 0, white, drawn.effects[fitted.codes])
        return self._outcomes(
            key_noise, white, self.fixed @ (sums.terms @ (sums.start + drawn.move))
        )

    def _prior_draw(self, key: Array, sample_shape: tuple[int, ...]) -> Array:
        if self.prior is None:
            raise ValueError(
                "fixed effects with a flat prior cannot be drawn; give them a prior to simulate data"
            )
        mean, lower = self.prior
        white = jax.random.normal(key, (*sample_shape, len(mean)), mean.dtype)
        return mean + white @ lower.T


def _latent(found: _Solved, move: Array, white: Array) -> LatentEffects:
    """Latent variables from standard normal ones; zeros give the posterior mean."""
    shift = inverse(found.root).T @ (found.height + move)
    center = found.half + found.slope @ shift + white
    return LatentEffects(jnp.einsum("gji,gj->gi", inverse(found.lower), center), shift)


def _solved(factors: dict[str, Array]) -> _Solved:
    lower = cholesky(-2.0 * factors["precision"])
    right = jnp.concatenate([factors["shift"][..., None], factors["cross"]], axis=-1)
    solved = forward_solve(lower, right)
    half, slope = solved[..., 0], solved[..., 1:]
    flat = slope.reshape(-1, slope.shape[-1])
    root = cholesky(-2.0 * factors["fixed_precision"] - flat.T @ flat)
    linear = factors["fixed_shift"] + flat.T @ half.reshape(-1)
    return _Solved(lower, half, slope, root, forward_solve(root, linear[:, None])[:, 0])
