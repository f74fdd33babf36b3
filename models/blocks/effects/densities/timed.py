"""Outcomes of a linear mixed model whose random effects also change the hazard of an event."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from ...collapsed import Fitted, NamedArray
from ...event_times import PiecewiseHazard
from .marginal import MixedEffects
from .random_effects import moments, named_effects

__all__ = ["TimedEffects", "TimesGivenOutcomes"]


class Tilted(NamedTuple):
    """Whitened effects given the outcomes: means, inverse Cholesky factors of their precisions.

    Further fields are the gradient of the log hazard ratio in the effects, their covariance with it
    divided by its standard deviation, and the distribution of the times.
    """

    center: Array
    root: Array
    slope: Array
    shared: Array
    hazard: PiecewiseHazard


class TimedEffects(MixedEffects):
    r"""`MixedEffects` with times to an event, whose log hazard ratio is :math:`\eta_s + b_s^\top \alpha`.

    The joint density of outcomes and times is :math:`p(y) p(t \mid y)`, and this is its first factor,
    `times` the second. Given the outcomes, b is normal with means m and covariances V, so that the hazard
    depends on one normal number per subject, :math:`b_s^\top \alpha`, with mean
    :math:`m_s^\top \alpha` and standard deviation :math:`v_s = (\alpha^\top V_s \alpha)^{1/2}`. It is
    integrated out by one-dimensional quadrature, however many effects there are. Its moments
    :math:`E[u_s], \mathrm{Var}[u_s]` given the time as well give those of the effects,

    .. math:: E[b_s \mid y, t] = m_s + V_s \alpha E[u_s] / v_s, \qquad
              \mathrm{Cov}[b_s \mid y, t] = V_s + V_s \alpha \alpha^\top V_s (\mathrm{Var}[u_s] - 1) / v_s^2.

    Parameters
    ----------
    *args, **kwargs
        As for `MixedEffects`.
    hazard : PiecewiseHazard
        Hazard of the subjects if all effects are zero.
    association : array_like, shape (num_effects,)
        Log hazard ratios :math:`\alpha`.
    time : array_like, shape (num_subjects,), or None
        Known times. They change the effects in `posterior` and `draw_known`, but not the density of
        the outcomes.
    """

    pytree_data_fields: ClassVar[tuple[str, ...]] = ("hazard", "association", "time")

    def __init__(
        self,
        *args: Any,
        hazard: PiecewiseHazard,
        association: ArrayLike,
        time: ArrayLike | None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.association = jnp.asarray(association)
        self.hazard = hazard
        self.time: Array | None = None
        if time is not None:  # an unknown time is as informative as one censored at zero
            known = ~jnp.isnan(jnp.asarray(time))
            self.time = jnp.where(known, jnp.asarray(time), 0.0)
            self.hazard = hazard.where(known)
        if self.association.shape != (self.design.shape[1],):
            raise ValueError(
                f"association has shape {self.association.shape}, expected ({self.design.shape[1]},)"
            )

    def times(self, value: Array) -> TimesGivenOutcomes:
        """Distribution of the times given the outcomes."""
        return TimesGivenOutcomes(self, value)

    def posterior(self, value: Array) -> dict[str, NamedArray]:
        """Posterior moments of the effects b given outcomes and times; see `MixedEffects`."""
        if self.time is None:
            return super().posterior(value)
        found = self.tilted(self.log_factors(value))
        mean, variance = found.hazard.frailty_moments(self.time)
        shared = found.shared @ self.scale_tril.T
        spread = found.root @ self.scale_tril.T
        tilt = (variance - 1)[:, None, None] * shared[:, :, None] * shared[:, None, :]
        center = found.center @ self.scale_tril.T + mean[:, None] * shared
        return named_effects(center, spread.mT @ spread + tilt)

    def draw_known(self, rng_key: Array, value: Array) -> Array:
        """Draw whitened effects given outcomes and times, shape (num_groups, num_effects).

        Effects are drawn given the outcomes, then moved along their covariance with the log hazard ratio
        to one drawn given the time as well.
        """
        if self.time is None:
            return self.draw(rng_key, value)
        key_effects, key_frailty = jax.random.split(rng_key)
        white, found = self.draw(key_effects, value), self.tilted(self.log_factors(value))
        moved = found.hazard.draw_frailty(key_frailty, self.time)
        along = (white - found.center) @ found.slope
        spread = jnp.asarray(found.hazard.frailty)
        own = jnp.where(spread > 0, along / jnp.where(spread > 0, spread, 1.0), 0.0)
        return white + (moved - own)[:, None] * found.shared

    def tilted(self, factors: dict[str, Array]) -> Tilted:
        """Information in the outcomes about the effects and the hazard, given their `log_factors`."""
        center, root = moments(factors)
        slope = self.scale_tril.T @ self.association
        along = root @ slope
        variance = (along**2).sum(axis=-1)
        known = variance == 0
        frailty = jnp.where(known, 0.0, jnp.sqrt(jnp.where(known, 1.0, variance)))
        shared = jnp.einsum("gji,gj->gi", root, along) / jnp.where(known, 1.0, frailty)[:, None]
        return Tilted(center, root, slope, shared, self.hazard.moved(center @ slope, frailty))


class TimesGivenOutcomes(PiecewiseHazard):
    """Times of the events of subjects given their outcomes, under `TimedEffects`.

    Parameters
    ----------
    effects : TimedEffects
        Distribution of the outcomes.
    outcomes : Array, shape (num_rows,)
    """

    pytree_data_fields: ClassVar[tuple[str, ...]] = ("effects", "outcomes")

    def __init__(self, effects: TimedEffects, outcomes: Array) -> None:
        self.effects, self.outcomes = effects, outcomes
        given = effects.tilted(effects.log_factors(outcomes)).hazard
        super().__init__(
            given.log_hazards, given.cuts, given.log_ratio, given.event, frailty=given.frailty
        )

    @property
    def groups(self) -> Any:
        """Subjects to which the rows of the outcomes belong."""
        return self.effects.groups

    def draw_data(self, rng_key: Array, fitted: Fitted | None = None) -> Array:
        r"""Draw times given the outcomes; for fitted subjects, also given their fitted data.

        The effects of a fitted subject have the density

        .. math:: p(u \mid y^*, y, t) \propto p(u) p(y^* \mid u) p(y \mid u) p(t \mid u),

        where :math:`y^*` are the outcomes here, y and t the fitted data.
        """
        if fitted is None:
            return self.sample(rng_key)
        key_time, key_known, key_new = jax.random.split(rng_key, 3)
        before: TimesGivenOutcomes = fitted.fn  # type: ignore[assignment]
        codes, known = fitted.codes, fitted.codes >= 0
        factors, own = (f.effects.log_factors(f.outcomes) for f in (self, before))
        eye = jnp.eye(own["shift"].shape[-1])  # both precisions include that of the prior
        more = own["precision"][codes] + 0.5 * eye
        given = self.effects.tilted(
            {
                "precision": factors["precision"] + jnp.where(known[:, None, None], more, 0.0),
                "shift": factors["shift"] + jnp.where(known[:, None], own["shift"][codes], 0.0),
            }
        )
        frailty, along = jnp.asarray(given.hazard.frailty), given.center @ given.slope
        then = before.effects.hazard.subset(codes).moved(along, frailty)
        drawn = jnp.where(
            known,
            then.draw_frailty(key_known, jnp.nan_to_num(fitted.value)[codes]),
            jax.random.normal(key_new, frailty.shape, frailty.dtype),
        )
        return self.effects.hazard.moved(along + frailty * drawn).sample(key_time)
