"""Mixing weights under a symmetric Dirichlet prior, as a conjugate block."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax import Array, lax
from jax.scipy.special import digamma
from jax.typing import ArrayLike
from numpy.typing import NDArray

from sidebayes.common.arrays import given_array, is_traced
from sidebayes.common.fields import Range, check_number

from ..block import Block, Observation
from ..collapsed import Collapsed
from ..label_inference.approximate import Inference
from ..label_inference.label_graph import LabelGraph
from ..label_inference.partition import check_inference
from .linked_categorical import check_reading

__all__ = [
    "ComponentWeights",
    "DirichletWeights",
    "MixingWeights",
    "WithinWeights",
    "cluster_weights",
    "match_moments",
    "mixing_weights",
]

_REDUCTION = 0.1
"""Share of the gradient in the weights of a field at which an M-step stops if links form loops, whose
sums are slow. The next step continues from there, and no step lowers the surrogate."""


def mixing_weights(
    num_clusters: int, concentration: float = 1.0, *, name: str = "weights"
) -> Array:
    """Sample mixing weights, shape (num_clusters,), under a symmetric Dirichlet prior.

    Parameters
    ----------
    num_clusters : int
    concentration : float
        Positive; 1 is flat.
    name : str
        Name of the site.
    """
    return MixingWeights(num_clusters, concentration).sample(name)


def cluster_weights(
    graph: LabelGraph,
    num_clusters: int,
    concentration: float,
    weights: ArrayLike | str | None,
    reading: str,
    inference: str | Inference,
) -> Array:
    """Mixing weights of clusters whose labels are tied by links: sampled, or fixed if they are given.

    Parameters
    ----------
    graph : LabelGraph
    num_clusters : int
    concentration : float
        Concentration of the symmetric Dirichlet prior; 1 is flat.
    weights : array_like, shape (num_clusters,), "uniform" or None
        None learns them.
    reading : {"field", "relation", "unnormalised"}
        See `LinkedCategorical`.
    inference : str or inference object
        Treatment of connected sets that are too wide for exact summation. Learned weights of a
        field need exact sums, because its partition function depends on them.

    Returns
    -------
    Array, shape (num_clusters,)

    Raises
    ------
    ValueError
        If fixed weights are not probabilities, or if learned ones would need exact sums.
    """
    check_reading(reading)
    if weights is None:
        if reading == "field":
            _refuse_inexact_field(graph, num_clusters, inference)
        return mixing_weights(num_clusters, concentration)
    with numpyro.plate("clusters", num_clusters):
        return numpyro.deterministic("weights", _fixed_weights(weights, num_clusters))


def _fixed_weights(weights: ArrayLike | str, num_clusters: int) -> Array:
    """Given weights, which must be probabilities."""
    if isinstance(weights, str):
        if weights != "uniform":
            raise ValueError(
                f"weights = {weights!r}; expected 'uniform', a vector, or None to learn"
            )
        return jnp.full(num_clusters, 1 / num_clusters)
    given = given_array("weights", weights)
    valid = is_traced(given) or ((given > 0).all() and abs(given.sum() - 1) <= 1e-6)
    if given.shape != (num_clusters,) or not valid:
        raise ValueError(
            f"weights = {given}; expected {num_clusters} positive numbers that sum to 1"
        )
    return jnp.asarray(given)


def _refuse_inexact_field(graph: LabelGraph, num_clusters: int, inference: str | Inference) -> None:
    """Refuse approximations: learned weights need a field's exact partition function and gradient."""
    remedy = (
        "use reading='relation', links as statements, or weights='uniform', with an approximation"
    )
    approximation = check_inference(graph, num_clusters, inference, remedy)
    if approximation is not None:
        raise ValueError(
            f"mixing weights cannot be learned under reading='field' with {approximation}: their "
            "partition function would be approximate too. Use reading='relation', links as statements, "
            "or weights='uniform'"
        )


_LEAST = 1e-10
"""Least number of events at a mode where the prior density is unbounded."""


def at_a_pole(
    values: NDArray, what: str, prior: str, remedy: str, *, upper: bool = False
) -> str | None:
    """Say that a point estimate of probabilities lies on their bounds, where its prior is infinite.

    Parameters
    ----------
    values : ndarray, shape (chain, draw, number)
        Probabilities; several draws are not a point estimate.
    what, prior, remedy : str
        Name of the probabilities, their prior, and what to pass instead.
    upper : bool
        Whether the prior is infinite at one as well.
    """
    low = values <= 100 * _LEAST
    number = int((low | (upper & (values >= 1 - 100 * _LEAST))).sum())
    if values.shape[:2] != (1, 1) or not number:
        return None
    return (
        f"{number} of {values.size} {what} {'is' if number == 1 else 'are'} at "
        f"{'zero or one' if upper else 'zero'}, where their {prior} prior is infinite, so that the height of "
        f"this mode, and the choice among starts by it, mean nothing; pass {remedy}, or use an engine that "
        "draws"
    )


class _DirichletPosterior(NamedTuple):
    """Concentrations, and distributions whose normaliser depends on the weights."""

    concentration: Array
    tied: tuple[Any, ...] = ()


class DirichletWeights(Block):
    """Weights whose expected counts are the gradient with respect to their logarithms."""

    def __init__(self, size: int, concentration: float | Array) -> None:
        if not isinstance(concentration, Array):  # which may be a value that the model computes
            concentration = check_number("concentration", concentration, Range(above=0.0))
        self.size, self.concentration = size, concentration

    @property
    def _prior(self) -> dist.Dirichlet:
        return dist.Dirichlet(jnp.full(self.size, 1.0 * self.concentration))

    def statistics(self, observation: Observation) -> Array:
        """Expected counts, of points or of chunklets by the sampling assumption."""
        return observation.expected[self.factor]

    def update(self, statistics: Array, sources: Sequence[Collapsed]) -> _DirichletPosterior:
        """Add the counts to the concentration of the prior."""
        return _DirichletPosterior(self.concentration + statistics)

    def mode(self, found: _DirichletPosterior, values: Mapping[str, Array]) -> dict[str, Array]:
        """Mode, kept inside the simplex if a count plus the concentration is below one."""
        raised = jnp.maximum(found.concentration - 1.0, _LEAST)
        return {self.roles[0]: raised / raised.sum(axis=-1, keepdims=True)}

    def remark(self, values: Mapping[str, Any]) -> str | None:
        """Say which modes are spurious because the prior is infinite there."""
        if isinstance(self.concentration, Array) or self.concentration >= 1:
            return None
        prior = f"Dirichlet({self.concentration:.3g})"
        return at_a_pole(values[self.roles[0]], "weights", prior, "concentration=1 or more")

    def draw(self, rng_key: Array, found: _DirichletPosterior) -> dict[str, Array]:
        """Draw weights, none exactly zero."""
        drawn = dist.Dirichlet(found.concentration).sample(rng_key)
        return {self.roles[0]: jnp.maximum(drawn, jnp.finfo(drawn.dtype).tiny)}

    def log_density(self, found: _DirichletPosterior, values: Mapping[str, Array]) -> Array:
        """Log density of the weights."""
        density = dist.Dirichlet(found.concentration, validate_args=False)
        return density.log_prob(values[self.roles[0]]).sum()

    def expected_factors(
        self, found: _DirichletPosterior, observation: Observation
    ) -> dict[str, Array]:
        """Expected log weights (Bishop 2006, eq. 10.66)."""
        total = found.concentration.sum(axis=-1, keepdims=True)
        return {self.factor: digamma(found.concentration) - digamma(total)}

    def divergence(self, found: _DirichletPosterior) -> Array:
        """Divergence from the prior, in nats."""
        return dist.kl_divergence(dist.Dirichlet(found.concentration), self._prior).sum()


class WithinWeights(DirichletWeights):
    """Weights of the components of each cluster, shape (num_clusters, num_components)."""

    factor: ClassVar[str] = "log_within"
    roles: ClassVar[tuple[str, ...]] = ("within_weights",)

    def sample(self, num_clusters: int, name: str) -> Array:
        """Sample the weights in the plate of the clusters."""
        with numpyro.plate("clusters", num_clusters):
            return self.declare("within_weights", name, self._prior, ("components",))


class ComponentWeights(DirichletWeights):
    """Weights of components that clusters share, shape (num_components,)."""

    factor: ClassVar[str] = "log_within"
    roles: ClassVar[tuple[str, ...]] = ("mixing_weights",)

    def sample(self, name: str, axis: str) -> Array:
        """Sample the weights; `axis` is the name of their axis."""
        return self.declare("mixing_weights", name, self._prior, (axis,))


class MixingWeights(DirichletWeights):
    """Weights of the clusters.

    If links form a random field, its partition function depends on the weights. Their posterior is
    then not a Dirichlet distribution, and its mode is found by matching moments. If links form
    loops, each M-step stops once a tenth of the gradient is left.
    """

    factor: ClassVar[str] = "log_weights"
    roles: ClassVar[tuple[str, ...]] = ("mixing_weights",)

    def sample(self, name: str) -> Array:
        """Sample the weights."""
        return self.declare("mixing_weights", name, self._prior, ("clusters",))

    def update(self, statistics: Array, sources: Sequence[Collapsed]) -> _DirichletPosterior:
        """Add the counts to the concentration, and store the partition functions."""
        tied = tuple(fn for fn in sources if not fn.has_free_weights)
        return _DirichletPosterior(self.concentration + statistics, tied)

    def obstacle(self, sources: Sequence[Collapsed]) -> str | None:
        """Say why there is no full conditional if a partition function depends on the weights."""
        if all(fn.has_free_weights for fn in sources):
            return None
        return (
            "the partition function of links under reading='field' depends on the mixing weights: "
            "pass reading='relation' or weights='uniform'"
        )

    def log_density(self, found: _DirichletPosterior, values: Mapping[str, Array]) -> Array:
        """Log density of the weights, up to a constant if there are partition functions."""
        free = super().log_density(found, values)
        return free - _log_omega(found, jnp.log(values["mixing_weights"]))

    def mode(self, found: _DirichletPosterior, values: Mapping[str, Array]) -> dict[str, Array]:
        """Mode of the Dirichlet distribution, or of the posterior that includes partition functions."""
        if not found.tied:
            return super().mode(found, values)
        log_omega = partial(_log_omega, found)
        loops = jnp.any(jnp.asarray([fn.sums_loops for fn in found.tied]))
        reduction = jnp.where(loops, _REDUCTION, 0.0)
        count = found.concentration - self.concentration
        start = jnp.log(values["mixing_weights"])
        solved = match_moments(count, start, log_omega, self.concentration, reduction)
        return {"mixing_weights": solved}


def _log_omega(found: _DirichletPosterior, log_weights: Array) -> Array:
    """Log partition functions of the links at log weights."""
    terms = [fn.log_normalizer_at(log_weights) for fn in found.tied]
    return sum(terms, start=jnp.zeros(()))


def match_moments(
    count: Array,
    log_weights: Array,
    log_omega: Callable[[Array], Array],
    concentration: float | Array = 1.0,
    reduction: float | Array = 0.0,
) -> Array:
    r"""Maximise :math:`\sum_k n_k\eta_k - \log\Omega(e^\eta) + (\alpha-1)\sum_k\log\pi_k`.

    The function is concave in :math:`\eta` (own derivation: log Omega is the log-partition of an
    exponential family), and at its maximum the prior's expected counts equal `count`. The problem
    is solved by BFGS steps with halving instead of the grid of the thesis (Lu 2008, eq. 2.22). The
    first metric is close to that of labels without links. No step needs a second derivative of
    Omega.

    Parameters
    ----------
    count : Array, shape (num_clusters,)
        Expected counts, which sum to the degree of homogeneity of Omega.
    log_weights : Array, shape (num_clusters,)
        Start.
    log_omega : callable
        Log partition function of log weights.
    concentration : float
    reduction : float
        Stop once the gradient has fallen to this share of its initial size; by default at rounding.
    """
    size = count.sum()
    eps = float(jnp.finfo(count.dtype).eps)

    @jax.value_and_grad
    def objective(eta: Array) -> Array:
        log_pi = jax.nn.log_softmax(eta)
        return count @ log_pi - log_omega(log_pi) + (concentration - 1.0) * log_pi.sum()

    def step(state: _Ascent) -> _Ascent:
        trial = state.eta + state.scale * state.move
        value, grad = objective(trial)
        rises = value >= state.value - 8 * eps * (1.0 + jnp.abs(value))
        moved, bent = trial - state.eta, state.grad - grad
        along = moved @ bent
        rate = jnp.where(along > 0, 1.0 / jnp.where(along > 0, along, 1.0), 0.0)
        shear = jnp.eye(len(count), dtype=count.dtype) - rate * jnp.outer(moved, bent)
        metric = shear @ state.metric @ shear.T + rate * jnp.outer(moved, moved)
        # the first step only evaluates
        metric = jnp.where((along > 0) & (state.number > 0), metric, state.metric)
        one = jnp.ones_like(state.scale)
        steepest = jnp.abs(grad).max()
        first = jnp.where(state.number == 0, steepest, state.first)
        flat = rises & (steepest <= jnp.maximum(eps ** (2 / 3) * size, reduction * first))
        move = jnp.clip(metric @ grad, -2.0, 2.0)
        kept = _Ascent(trial, value, grad, metric, move, one, first, flat, 0)
        back = state._replace(scale=state.scale / 2, done=state.scale < eps)
        new = jax.tree.map(lambda a, b: jnp.where(rises, a, b), kept, back)
        return new._replace(number=state.number + 1)

    start = jax.nn.log_softmax(log_weights)
    state = _Ascent(
        eta=start,
        value=jnp.asarray(-jnp.finfo(count.dtype).max, count.dtype),
        grad=jnp.zeros_like(start),
        metric=jnp.diag(2.0 / (count + size * jnp.exp(start))),
        move=jnp.zeros_like(start),
        scale=jnp.ones((), count.dtype),
        first=jnp.zeros((), count.dtype),
        done=jnp.asarray(False),
        number=jnp.asarray(0),
    )
    found = lax.while_loop(lambda s: (s.number < 60) & ~s.done, step, state)
    return jax.nn.softmax(found.eta)


class _Ascent(NamedTuple):
    """State of `match_moments`, and the step that it tries next."""

    eta: Array
    value: Array
    grad: Array
    metric: Array
    move: Array
    scale: Array
    first: Array
    done: Array
    number: Any
