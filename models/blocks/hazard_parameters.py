"""Parameters of proportional hazards as one block: sites, units and starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import Array
from jax.typing import ArrayLike
from numpy.typing import NDArray
from numpyro.distributions.transforms import (
    AffineTransform,
    ComposeTransform,
    LowerCholeskyAffine,
    Transform,
)

from sidebayes.common.arrays import is_traced
from sidebayes.common.clocks import Measures, late_subjects
from sidebayes.common.magnitudes import shown
from sidebayes.common.warnings import warn_user

from .block import Block
from .effects.identified import independent_columns
from .event_times import HazardPrior
from .numbers import library_of

__all__ = ["HazardParameters", "warn_of_late_rows"]

_NEAR = 0.4
"""Maximum distance of starts from the prior's centre, in prior standard deviations."""

_CONSTANT = 1e-12
"""Range of a covariate, relative to its size, up to which it counts as constant."""


def warn_of_late_rows(data: Mapping[str, Any], columns: Mapping[str, tuple[str, ...]]) -> None:
    """Warn about measurements after the event, if a column looks like the clock of the times.

    Parameters
    ----------
    data : mapping
        Data of `joint_survival` by name.
    columns : mapping of str to tuple of str
        Names of columns by table, for tables that have names.
    """
    if not {"subjects", "random", "fixed"} <= data.keys():
        return
    groups, time = data["subjects"], data["time"]
    if not (np.isfinite(time) & (time > 0)).all():
        return  # which the model refuses
    own = groups.codes >= 0
    random, fixed = (np.asarray(data[name], float)[own] for name in ("random", "fixed"))
    # a column of both kinds counts as one of random effects
    alone = ~(fixed[:, :, None] == random[:, None]).all(axis=0).any(axis=1)
    for table, values, kept in (("random", random, None), ("fixed", fixed, alone)):
        numbers = np.arange(values.shape[1]) if kept is None else np.flatnonzero(kept)
        given = columns.get(table)
        names = [given[n] if given else f"{table}[:, {n}]" for n in numbers]
        rows = Measures(values[:, numbers], groups.codes[own], time)
        of_effects = table == "random"
        for number, _, late in late_subjects(rows, given and names, of_effects=of_effects):
            name = names[number]
            who = groups.names[late].tolist()[:5]
            unit = "see that both have the same unit; " if len(late) > len(time) / 2 else ""
            warn_user(
                f"{len(late)} of {len(time)} subjects, the first {who}, have measures with {name} after the "
                f"time of their event or end of observation; {unit}if {name} counts from the same origin, "
                "drop these rows: the model takes them as measured while the subject was at risk"
            )


class HazardParameters(Block):
    """Baseline hazard, and log hazard ratios of covariates and of random effects.

    Parameters
    ----------
    prior : HazardPrior
    covariates : array_like, shape (num_subjects, num_covariates), or None
    random_map : array_like, shape (num_effects, num_effects)
        Map from the random effects to those to which the prior of log hazard ratios refers.

    Raises
    ------
    TypeError
        If there is no `HazardPrior`.
    ValueError
        If its numbers do not match the numbers of covariates or random effects.
    """

    roles: ClassVar[tuple[str, ...]] = ("level", "log_hazard_ratios", "association")

    def __init__(
        self, prior: HazardPrior, covariates: ArrayLike | None, random_map: Array | NDArray
    ) -> None:
        if not isinstance(prior, HazardPrior):
            raise TypeError(
                f"hazard = {shown(prior)}; pass a HazardPrior, such as HazardPrior.weak(time, event), or "
                "take all data from sidebayes.design(...).survival(...)"
            )
        sizes = {"association": ("random effects", len(random_map))}
        if covariates is not None:
            number = jnp.shape(covariates)[1]
            sizes |= dict.fromkeys(("covariates", "origin"), ("covariates", number))
        for name, (what, number) in sizes.items():
            shape = np.shape(getattr(prior, name))
            if shape not in ((), (number,)):
                raise ValueError(
                    f"HazardPrior({name}=...) has shape {shape}, and there are {number} {what}; give one "
                    "number, or one for each"
                )
        self.prior, self.covariates = prior, covariates
        # `prior.association` has the deviations of ratios of the mapped effects; this is the factor
        # for those of the effects themselves
        xp = library_of(prior.association, random_map)
        self.association_tril = random_map.T * xp.broadcast_to(prior.association, len(random_map))

    @property
    def factors(self) -> tuple[str | None, ...]:
        """None: the density of the times has no log-factors."""
        return (None,)

    def log_hazards(self) -> Array:
        """Sample the log-hazards of all intervals at covariates of the origin, shape (num_intervals,)."""
        prior = self.prior
        level = self.declare("level", "level", dist.Normal(prior.level, prior.level_scale))
        log_hazards = level[None]
        number = np.size(prior.cuts)
        if number:
            scale = numpyro.sample("step_scale", dist.HalfNormal(prior.step))
            steps = dist.Normal(0.0, 1.0).expand([number]).to_event(1)
            steps = numpyro.sample("steps", steps, infer={"event_dims": ["cuts"]})
            log_hazards = jnp.concatenate([log_hazards, level + scale * jnp.cumsum(steps)])
        with numpyro.plate("intervals", number + 1):
            return numpyro.deterministic("log_hazards", log_hazards)

    def association(self) -> Array:
        """Sample the log hazard ratios of the random effects, shape (num_effects,)."""
        lower = jnp.asarray(self.association_tril)
        fn = dist.MultivariateNormal(jnp.zeros(len(lower)), scale_tril=lower)
        return self.declare("association", "association", fn, ["effects"])

    def log_ratio(self, num_subjects: int) -> Array:
        """Sample the log hazard ratios of covariates; return those of the subjects, shape (num_subjects,)."""
        if self.covariates is None:
            return jnp.zeros(num_subjects)
        with numpyro.plate("covariates", jnp.shape(self.covariates)[1]):
            law = dist.Normal(0.0, jnp.asarray(self.prior.covariates))
            slopes = self.declare("log_hazard_ratios", "log_hazard_ratios", law)
        return (jnp.asarray(self.covariates) - jnp.asarray(self.prior.origin)) @ slopes

    def bijector(self, role: str, bijector: Transform) -> Transform:
        """Coordinates in units of the prior, which match the columns; unscaled if the prior is sampled."""
        prior = self.prior
        if not prior.is_known:
            return bijector
        if role == "association":
            lower = jnp.asarray(self.association_tril)
            return LowerCholeskyAffine(jnp.zeros(len(lower)), lower)
        place, scale = {
            "level": (prior.level, prior.level_scale),
            "log_hazard_ratios": (0.0, jnp.asarray(prior.covariates)),
        }[role]
        return ComposeTransform([bijector, AffineTransform(place, scale)])

    def check(self, name: str, value: Any) -> None:
        """Warn about an origin whose distance from the covariates exceeds their range."""
        if self.covariates is None or any(map(is_traced, (self.covariates, self.prior.origin))):
            return
        rows = np.asarray(self.covariates, float)
        origin = np.broadcast_to(self.prior.origin, rows.shape[1:])
        low, high = rows.min(axis=0), rows.max(axis=0)
        far = (high > low) & ((origin < 2 * low - high) | (origin > 2 * high - low))
        if far.any():
            column = int(np.argmax(far))
            warn_user(
                f"covariates[:, {column}] lie between {low[column]:.6g} and {high[column]:.6g}, far from "
                f"HazardPrior(origin={origin[column]:.6g}), where the prior of the baseline hazard holds: it "
                "pulls log hazard ratios towards 0; pass origin=covariates.mean(axis=0)"
            )

    def remark(self, values: Mapping[str, Any]) -> str | None:
        """Say that covariates are constant, or depend on one another."""
        if self.covariates is None or is_traced(self.covariates):
            return None
        rows = np.asarray(self.covariates, float)
        centred = rows - rows.mean(axis=0)
        centred[:, np.ptp(rows, axis=0) <= _CONSTANT * np.abs(rows).max(axis=0)] = 0.0
        _, dependent = independent_columns(centred)
        if not dependent:
            return None
        return (
            f"Columns {dependent} of covariates are constant, or depend linearly on the others: the prior "
            "alone decides how their log hazard ratios are shared; drop them"
        )

    def starts(
        self, value: Any, shapes: Mapping[str, tuple[int, ...]], seed: int, num_starts: int
    ) -> dict[str, Any]:
        """The centre of the prior, and points near it; arbitrary points if the prior is sampled."""
        if not self.prior.is_known:
            return {}
        prior, rng = jax.tree.map(np.asarray, self.prior), np.random.default_rng(seed)
        near = {role: _NEAR * rng.uniform(-1, 1, (num_starts, *shapes[role])) for role in shapes}
        for noise in near.values():
            noise[0] = 0.0
        scaled = {
            "level": lambda noise: prior.level + prior.level_scale * noise,
            "log_hazard_ratios": lambda noise: noise * prior.covariates,
            "association": lambda noise: noise @ self.association_tril.T,
        }
        return {role: scaled[role](noise) for role, noise in near.items()}
