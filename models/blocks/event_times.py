"""Times to an event, some of them censored, with a piecewise-constant baseline hazard."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pandas as pd
from jax import Array
from jax.core import Tracer
from jax.scipy.special import logsumexp
from jax.typing import ArrayLike
from numpy.typing import ArrayLike as HostArrayLike
from numpyro.distributions import constraints

from sidebayes.common.arrays import given_array, is_traced, plain_array, real_array
from sidebayes.common.fields import Positive, Range, check_fields, check_integer
from sidebayes.common.magnitudes import shown

from .numbers import pytree_of_numbers
from .side_information.partial_labels import frozen

__all__ = ["HazardPrior", "PiecewiseHazard", "check_times", "read_times"]


@pytree_of_numbers
@dataclass(frozen=True)
class HazardPrior:
    r"""Intervals of a piecewise-constant baseline hazard, and the prior of proportional hazards.

    .. math:: \log \lambda_1 \sim N(m, s^2), \quad
              \log \lambda_j - \log \lambda_{j-1} \sim N(0, \tau^2), \quad
              \tau \sim \text{half-normal}(\nu), \quad
              \gamma_k \sim N(0, c_k^2), \quad \alpha_k \sim N(0, a_k^2)

    The prior is a pytree, so that fits with other values share compiled programs. All values but
    `cuts` may be values of other sites, for a prior with parameters of its own.

    Parameters
    ----------
    cuts : array_like, shape (num_intervals - 1,)
        Times at which the hazard jumps, positive and increasing. Empty for a constant hazard.
    level, level_scale : float
        Mean m and standard deviation s of the first log-hazard, at covariates of `origin`.
    step : float
        Scale :math:`\nu` of the steps between neighbouring intervals, positive.
    covariates : array_like, shape () or (num_covariates,)
        Standard deviations c of the log hazard ratios :math:`\gamma` of covariates, positive. The default
        suits covariates of unit width.
    association : array_like, shape () or (num_effects,)
        Standard deviations a of the log hazard ratios :math:`\alpha` of random effects, positive.
        The default suits effects of unit width. Effects on a measure in thousandths need a
        deviation a thousand times as large, which ``design.survival`` sets. The deviations refer to
        effects at the origin of the prior of the effects; see `EffectsPrior`.
    origin : array_like, shape () or (num_covariates,)
        Covariates at which the hazard is the baseline hazard; zero by default. They should lie
        among the data: a hazard at a birth year of 0 is not near any rate of events.
        ``design.survival`` takes their means.

    Attributes
    ----------
    is_known : bool
        Whether all numbers are known, so that none is a value of another site.
    """

    cuts: ArrayLike
    level: Annotated[float, Range()]
    level_scale: Positive = 2.5
    step: Positive = 1.0
    covariates: ArrayLike = 2.5
    association: ArrayLike = 2.5
    origin: ArrayLike = 0.0
    is_known: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("cuts", "covariates", "association", "origin"):
            read, signed = real_array if name == "cuts" else given_array, name == "origin"
            value = read(f"HazardPrior({name}=...)", getattr(self, name))
            known = not is_traced(value)
            valid = not known or (np.isfinite(value).all() and (signed or (value > 0).all()))
            if value.ndim > 1 or not valid:
                wanted = "numbers" if signed else "positive numbers"
                raise ValueError(f"HazardPrior({name}={value}): expected {wanted}")
            object.__setattr__(self, name, frozen(value) if known else value)
        cuts = np.asarray(self.cuts)
        if cuts.ndim != 1 or (np.diff(cuts) <= 0).any():
            raise ValueError(f"HazardPrior(cuts={cuts}): expected a list of increasing times")
        given = (getattr(self, one.name) for one in fields(self) if one.init)
        object.__setattr__(self, "is_known", not any(map(is_traced, given)))

    @classmethod
    def weak(
        cls, time: ArrayLike, event: ArrayLike, *, num_intervals: int = 6, **scales: Any
    ) -> Self:
        """Intervals with equally many events, about the overall rate of events.

        Parameters
        ----------
        time : array_like, shape (num_subjects,)
            Time to the event or to the end of observation, positive.
        event : array_like of bool, shape (num_subjects,)
            Whether the event was seen.
        num_intervals : int
            Maximum number of intervals; there are fewer if events share their times.
        **scales
            Other fields of the prior.

        Raises
        ------
        ValueError
            If no event was seen, so that nothing determines the rate.
        """
        number = check_integer("num_intervals", num_intervals)
        time, event = read_times(time, event)
        if not event.any():
            raise ValueError(
                "event is 0 for all subjects, so that nothing determines the rate of events; pass "
                "hazard=HazardPrior(cuts, level), whose level is the log of a rate known from elsewhere"
            )
        seen = time[event]
        cuts = np.unique(np.quantile(seen, np.arange(1, number) / number))
        cuts = cuts[cuts < seen.max()]  # the last interval has an event
        return cls(cuts, float(np.log(event.sum() / time.sum())), **scales)


def read_times(
    time: HostArrayLike, event: HostArrayLike, subjects: Sequence[str] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return times and indicators of events as arrays of floats and of truth values.

    Parameters
    ----------
    time, event : array_like, shape (num_subjects,)
        For tables, messages name the column, and rows by their index.
    subjects : sequence of str, optional
        Subject of each row, for messages.

    Raises
    ------
    ValueError
        If a time is not positive and finite, an indicator is neither 0 nor 1, or lengths differ.
    """
    times, events = real_array("time", time), _indicators(event, subjects)
    if times.ndim != 1 or times.shape != events.shape:
        raise ValueError(
            f"time has shape {times.shape} and event {events.shape}; expected one of each per subject"
        )
    odd = ~(np.isfinite(times) & (times > 0))
    if odd.any():
        said = _value("time", time, times, int(np.argmax(odd)), subjects)
        raise ValueError(f"{said}; expected a positive time, from the same origin for all")
    odd = ~np.isin(events, (0, 1))
    if odd.any():
        said = _value("event", event, events, int(np.argmax(odd)), subjects)
        raise ValueError(f"{said}; expected 1 where the event was seen, 0 where time is censored")
    return times, events.astype(bool)


class PiecewiseHazard(dist.Distribution):
    r"""Times to an event under proportional hazards, right-censored where the event was not seen.

    .. math:: h_s(t) = \lambda_{j(t)} e^{\eta_s + v_s u_s}, \qquad u_s \sim N(0, 1), \qquad
              p(t_s \mid u_s) = h_s(t_s)^{e_s} \exp\left(-\int_0^{t_s} h_s(r) \, dr\right)

    with e = 1 where the event was seen. The integral over time is exact. The frailty u is integrated
    out by adaptive Gauss-Hermite quadrature with 48 nodes. Its error in the log density is below
    1e-11 for v up to 1, 2e-7 at 2, and 1e-4 at 4. Draws are times of the event itself, uncensored.

    Parameters
    ----------
    log_hazards : array_like, shape (num_intervals,)
        Baseline :math:`\log \lambda_j`.
    cuts : array_like, shape (num_intervals - 1,)
        Increasing times that separate the intervals.
    log_ratio : array_like, shape (num_subjects,)
        Log hazard ratios :math:`\eta_s`.
    event : array_like, shape (num_subjects,), optional
        1 where the event was seen, 0 where the time is censored. By default it was always seen.
    frailty : array_like, shape (num_subjects,), optional
        Standard deviations v of the uncertainty of the log hazard ratios. Zero by default.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> fn = PiecewiseHazard(jnp.log(jnp.array([0.1, 0.2])), jnp.array([5.0]), jnp.zeros(1))
    >>> print(f"{fn.cumulative_hazard(jnp.array([6.0]))[0]:.3f}")
    0.700
    """

    arg_constraints: ClassVar[dict] = {
        "log_hazards": constraints.real_vector,
        "cuts": constraints.real_vector,
        "log_ratio": constraints.real,
    }
    support = constraints.positive
    pytree_data_fields: ClassVar[tuple[str, ...]] = (
        "log_hazards",
        "cuts",
        "log_ratio",
        "event",
        "frailty",
    )

    def __init__(
        self,
        log_hazards: ArrayLike,
        cuts: ArrayLike,
        log_ratio: ArrayLike,
        event: ArrayLike | None = None,
        *,
        frailty: ArrayLike | None = None,
        validate_args: bool | None = None,
    ) -> None:
        self.log_hazards, self.cuts = jnp.asarray(log_hazards), jnp.asarray(cuts)
        self.log_ratio = jnp.asarray(log_ratio)
        self.event = jnp.ones_like(self.log_ratio) if event is None else jnp.asarray(event)
        self.frailty = None if frailty is None else jnp.asarray(frailty)
        if self.log_hazards.shape != (len(self.cuts) + 1,):
            raise ValueError(
                f"log_hazards has shape {self.log_hazards.shape}, expected ({len(self.cuts) + 1},) for "
                f"{len(self.cuts)} cuts"
            )
        for name, value in (("event", self.event), ("frailty", self.frailty)):
            if value is not None and value.shape != self.log_ratio.shape:
                raise ValueError(
                    f"{name} has shape {value.shape}, expected {self.log_ratio.shape}, one per subject"
                )
        super().__init__(batch_shape=self.log_ratio.shape, validate_args=validate_args)

    def beside_value(self) -> dict[str, Callable[[], Array]]:
        """Masks of the censored times; see `ScoresMore`."""
        return {"events": lambda: self.event <= 0}

    def moved(self, log_ratio: Array, frailty: Array | None = None) -> PiecewiseHazard:
        """The same distribution with other frailties, and an addition to the log hazard ratios."""
        log_ratio = self.log_ratio + log_ratio
        return PiecewiseHazard(self.log_hazards, self.cuts, log_ratio, self.event, frailty=frailty)

    def subset(self, subjects: Array) -> PiecewiseHazard:
        """The times of some subjects, by number, without frailties."""
        log_ratio, event = self.log_ratio[subjects], self.event[subjects]
        return PiecewiseHazard(self.log_hazards, self.cuts, log_ratio, event)

    def where(self, known: Array) -> PiecewiseHazard:
        """The same distribution without the events of subjects with unknown times."""
        event = jnp.where(known, self.event, 0.0)
        return PiecewiseHazard(self.log_hazards, self.cuts, self.log_ratio, event)

    def cumulative_hazard(self, time: ArrayLike) -> Array:
        """Integral of the hazard up to times of shape (..., num_subjects), at frailties of zero."""
        edges = jnp.pad(self.cuts, (1, 0))
        within = jnp.clip(jnp.asarray(time)[..., None] - edges, 0.0, self._lengths)
        return (within * jnp.exp(self.log_hazards)).sum(axis=-1) * jnp.exp(self.log_ratio)

    @property
    def _lengths(self) -> Array:
        return jnp.diff(self.cuts, prepend=0.0, append=jnp.inf)

    def log_prob(self, value: Array, intermediates: Any = None) -> Array:
        """Log density, or log survival probability if censored, shape (num_subjects,)."""
        interval = jnp.searchsorted(self.cuts, value, side="left")
        log_hazard = self.event * (self.log_hazards[interval] + self.log_ratio)
        if self.frailty is None:
            return log_hazard - self.cumulative_hazard(value)
        return log_hazard + logsumexp(self._quadrature(value)[1], axis=-1)

    def frailty_moments(self, value: Array) -> tuple[Array, Array]:
        """Means and variances of the frailties u given the times, shape (num_subjects,) each."""
        node, log_weight = self._quadrature(value)
        weight = jax.nn.softmax(log_weight, axis=-1)
        mean = (weight * node).sum(axis=-1)
        return mean, (weight * (node - mean[..., None]) ** 2).sum(axis=-1)

    def draw_frailty(self, rng_key: Array, value: Array) -> Array:
        """Draw the frailties u given the times, from their distribution function at 513 points."""
        mode, scale = self._mode(value)
        reach = jnp.arcsinh(_REACH / scale)
        node = mode + scale * jnp.sinh(reach * jnp.linspace(-1.0, 1.0, 513))
        density = jax.nn.softmax(self._exponent(value, node), axis=-1)
        area = 0.5 * (density[:, 1:] + density[:, :-1]) * jnp.diff(node, axis=-1)
        below = jnp.pad(jnp.cumsum(area, axis=-1), ((0, 0), (1, 0)))
        share = jax.random.uniform(rng_key, self.batch_shape, node.dtype)
        return jax.vmap(jnp.interp)(share * below[:, -1], below, node)

    def _quadrature(self, time: Array) -> tuple[Array, Array]:
        """Nodes u and log weights of the integral over the frailty, shape (num_subjects, num_nodes)."""
        mode, scale = self._mode(time)
        white, log_weight = jnp.asarray(_NODES), jnp.asarray(_LOG_WEIGHTS)
        node = mode + scale * white
        return node, self._exponent(time, node) + log_weight + 0.5 * white**2 + jnp.log(scale)

    def _exponent(self, time: Array, node: Array) -> Array:
        """Log density of frailties given the times, up to a constant."""
        exponent = jnp.asarray(self.frailty)[:, None] * node
        hazard = self.cumulative_hazard(time)[:, None]
        return self.event[:, None] * exponent - hazard * jnp.exp(exponent) - 0.5 * node**2

    def _mode(self, time: Array) -> tuple[Array, Array]:
        """Mode of the frailty and its standard deviation from the curvature, (num_subjects, 1) each.

        With the cumulative hazard H the mode solves :math:`v e - v H e^{v u} = u`. The solution
        involves Lambert's W function. Mode and deviation only place the nodes; gradients do not
        pass through them.
        """
        hazard, frailty = self.cumulative_hazard(time), jnp.asarray(self.frailty)
        frailty += jnp.finfo(frailty.dtype).tiny ** 0.5  # a zero one has its mode at zero
        known = jax.lax.stop_gradient((hazard[:, None], frailty[:, None]))
        drive = known[1] * self.event[:, None]
        height = _lambert(jnp.log(known[0]) + 2 * jnp.log(known[1]) + known[1] * drive)
        return drive - height / known[1], (1 + height) ** -0.5

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        """Draw frailties, then times of the event from the inverse of the cumulative hazard."""
        key_time, key_frailty = jax.random.split(key)
        shape, dtype = (*sample_shape, *self.batch_shape), self.log_ratio.dtype
        log_ratio = self.log_ratio
        if self.frailty is not None:
            log_ratio += self.frailty * jax.random.normal(key_frailty, shape, dtype)
        goal = jax.random.exponential(key_time, shape, dtype) / jnp.exp(log_ratio)
        hazards, starts = jnp.exp(self.log_hazards), jnp.pad(self.cuts, (1, 0))
        reached = jnp.pad(jnp.cumsum(hazards[:-1] * self._lengths[:-1]), (1, 0))
        interval = jnp.searchsorted(reached, goal, side="right") - 1
        return starts[interval] + (goal - reached[interval]) / hazards[interval]


_REACH = 9.0
"""Maximum distance of drawn frailties from their mode, in prior standard deviations."""

_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(48)
_LOG_WEIGHTS = np.log(_WEIGHTS / _WEIGHTS.sum())

_STEPS = 5
"""Newton steps for Lambert's W; each step doubles the number of digits."""


def _lambert(log_value: Array) -> Array:
    """Lambert's W of a positive number given its logarithm: the root of w + log w."""
    log_value = jnp.maximum(log_value, 0.85 * jnp.log(jnp.finfo(log_value.dtype).tiny))
    start = jnp.where(
        log_value > 1, log_value - jnp.log(jnp.maximum(log_value, 1.0)), jax.nn.sigmoid(log_value)
    )
    for _ in range(_STEPS):
        start = start * (1 + log_value - jnp.log(start)) / (1 + start)
    return start


def _named(argument: str, given: Any, subject: str | None = None) -> str:
    """Name of an argument for messages, with its subject and its column of a table."""
    column = getattr(given, "name", None)
    of = "" if subject is None else f" of {subject}"
    return f"{argument}{of}" + ("" if column in (None, argument) else f", column {column!r},")


def _in_row(argument: str, given: Any, row: int, said: Any, subjects: Sequence[str] | None) -> str:
    """Message about an entry, which names the row of a table by its index."""
    place = given.index[row] if isinstance(given, pd.Series) else row
    subject = None if subjects is None else subjects[row]
    return f"{_named(argument, given, subject)} is {said} in row {place}"


def _value(
    argument: str, given: Any, values: np.ndarray, row: int, subjects: Sequence[str] | None
) -> str:
    """Description of an entry and its value, for messages."""
    if isinstance(given, pd.Series):
        return _in_row(argument, given, row, values[row], subjects)
    return f"{argument}[{row}] = {values[row]}"


def _indicators(event: HostArrayLike, subjects: Sequence[str] | None) -> np.ndarray:
    """Indicators of events as an array of floats; messages name the column of a table."""
    given = plain_array("event", event)
    missing = pd.isna(given)
    if missing.any():
        said = _in_row("event", event, int(np.argmax(missing)), "missing", subjects)
        raise ValueError(
            f"{said}; drop such subjects, or give 0 where the event was not seen until time"
        )
    try:
        return real_array("event", given)
    except TypeError:
        raise TypeError(
            f"{_named('event', event)} holds {shown(given.tolist()[0])}; expected 1 or True where the event "
            "was seen, 0 or False where time is censored"
        ) from None


def check_times(time: Any, event: Any) -> None:
    """Refuse invalid times and events, as far as they are known; see `read_times`."""
    if time is None or isinstance(time, Tracer) or isinstance(event, Tracer):
        return
    known = ~np.isnan(np.asarray(time, float))  # unknown if they are predicted
    event = np.ones(known.shape) if event is None else np.asarray(event)
    read_times(np.asarray(time)[known], event[known])
