"""Closed-form M-steps of Gaussian mixtures with linked labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax import Array, lax
from jax.typing import ArrayLike
from sidebayes.models.blocks import partition
from sidebayes.models.blocks.approximate import Inference
from sidebayes.models.blocks.components import GaussianPrior, resolve_prior
from sidebayes.models.blocks.label_graph import LabelGraph, as_label_graph
from sidebayes.models.ppc import FLIP_RATE_PRIOR

from .engines.gaussian_stats import Moments, weighted_moments

__all__ = [
    "constrained_em_m_step",
    "covariance_step",
    "match_moments",
    "ppc_m_step",
    "shrunk_moments",
    "shrunk_squares",
    "variance_step",
    "weighted_squares",
    "weights_are_free",
    "weights_step",
]


_REDUCTION = 0.1
"""Share of the slope in the weights of a field that an M-step leaves where sums over loops take long:
the next step goes on from there, and none lowers the surrogate."""


def ppc_m_step(
    *,
    num_clusters: int,
    covariance: str = "full",
    prior: str | GaussianPrior = "empirical",
    component: Callable[[], dist.Distribution] | None = None,
    concentration: float = 1.0,
    weights: ArrayLike | str | None = None,
    reading: str = "field",
    flip_rate: dist.Distribution | str | None = None,
    sampling: str = "points",
    inference: str | Inference = "exact",
    num_points: int | None = None,
) -> Callable[..., dict[str, Array]] | None:
    """M-step for `gmm` and `ppc`; None where there is no closed form.

    Parameters are the model's own options. The step maximises the surrogate exactly: means and
    covariances by their conjugate modes (Lu 2008, eqs. 2.18-2.19, with a prior), mixing weights by
    moment matching (eq. 2.21), a flip rate by its conjugate mode.
    """
    known = flip_rate is None or isinstance(flip_rate, dist.Beta) or flip_rate == "learned"
    if component is not None or not known:
        return None
    return partial(
        _m_step,
        num_clusters=num_clusters,
        covariance=covariance,
        prior=prior,
        concentration=concentration,
        weights=weights,
        reading=reading,
        flip_rate=flip_rate,
        sampling=sampling,
        inference=inference,
    )


def constrained_em_m_step(
    *, sampling: str = "chunklets", **options: Any
) -> Callable[..., dict[str, Array]] | None:
    """M-step for `constrained_em`: that of `ppc`, with the model's own default of `sampling`."""
    return ppc_m_step(sampling=sampling, **options)


def _m_step(
    params: Mapping[str, Array],
    args: tuple,
    posterior: Mapping[str, Any],
    *,
    num_clusters: int,
    covariance: str,
    prior: str | GaussianPrior,
    concentration: float,
    weights: ArrayLike | str | None,
    reading: str,
    flip_rate: dist.Beta | str | None,
    sampling: str,
    inference: str | Inference,
) -> dict[str, Array]:
    x = jnp.asarray(args[0])
    slope = posterior["x"]
    graph = as_label_graph(args[1] if len(args) > 1 else None, x.shape[0])
    resolved = resolve_prior(prior, x, num_clusters)
    mean = params["mean"]
    if covariance in ("full", "tied"):
        found = (
            slope["moments"] if "moments" in slope else weighted_moments(x, slope["unary"], mean)
        )
        new = covariance_step(found, mean, covariance, resolved)
    elif "moments" in slope:
        size, first, second = slope["moments"]
        squares = jnp.diagonal(second, axis1=1, axis2=2)
        new = variance_step(size, first, squares, mean, covariance, resolved)
    else:
        new = variance_step(*weighted_squares(x, slope["unary"]), covariance, resolved)
    if weights is None:
        options: Any = {"reading": reading, "sampling": sampling, "inference": inference}
        count = slope["log_weights"]
        given = count, params["weights"], graph, concentration
        reduction = _REDUCTION if graph.is_large else 0.0
        new["weights"] = weights_step(*given, reduction=reduction, **options)
    if flip_rate is not None:
        prior = dist.Beta(*FLIP_RATE_PRIOR) if isinstance(flip_rate, str) else flip_rate
        new["flip_rate"] = _flip_rate_step(slope["pair_weights"], graph, prior)
    return new


def covariance_step(
    moments: Moments, mean: Array, covariance: str, prior: GaussianPrior | None
) -> dict[str, Array]:
    """Modes of means and of full or tied covariances given the moments of each cluster.

    Parameters
    ----------
    moments : Moments
        About `mean`.
    mean : Array, shape (num_clusters, num_features)
    covariance : {"full", "tied"}
    prior : GaussianPrior or None
        None gives maximum likelihood.
    """
    num_clusters, num_features = mean.shape
    size = moments.total
    tiny = jnp.finfo(mean.dtype).tiny
    new, spread = shrunk_moments(moments, mean, prior)
    # exponents of the inverse Wishart and of the prior mean given the covariance
    extra, own = (0.0, 0.0) if prior is None else (prior.df + num_features + 1.0, 1.0)
    base = jnp.zeros(()) if prior is None else jnp.asarray(prior.scale)
    if covariance == "tied":
        sigma = (spread.sum(axis=0) + base) / (size.sum() + extra + own * num_clusters)
    else:
        sigma = (spread + base) / jnp.maximum(size + extra + own, tiny)[:, None, None]
    return {"mean": new, "covariance": (sigma + jnp.swapaxes(sigma, -1, -2)) / 2}


def shrunk_moments(
    moments: Moments, mean: Array, prior: GaussianPrior | None
) -> tuple[Array, Array]:
    r"""Means shrunk towards that of the prior, and what the clusters add to its scale.

    Parameters
    ----------
    moments : Moments
        About `mean`.
    mean : Array, shape (num_clusters, num_features)
    prior : GaussianPrior or None
        None shrinks nothing.

    Returns
    -------
    new : Array, shape (num_clusters, num_features)
        :math:`m_k = (\sum_n r_{nk} x_n + \kappa m) / (n_k + \kappa)`.
    spread : Array, shape (num_clusters, num_features, num_features)
        :math:`\sum_n r_{nk} (x_n - m_k)(x_n - m_k)^\top + \kappa (m - m_k)(m - m_k)^\top`.
    """
    size = moments.total
    if prior is None:
        move = moments.first / jnp.maximum(size, jnp.finfo(mean.dtype).tiny)[:, None]
        spread = moments.second
    else:
        kappa, towards = prior.shrinkage, jnp.asarray(prior.mean) - mean
        move = (moments.first + kappa * towards) / (size + kappa)[:, None]
        pull = towards - move
        spread = moments.second + kappa * pull[:, :, None] * pull[:, None, :]
    cross = moments.first[:, :, None] * move[:, None, :]
    spread = spread - cross - jnp.swapaxes(cross, 1, 2)
    return mean + move, spread + size[:, None, None] * move[:, :, None] * move[:, None, :]


def variance_step(
    size: Array,
    first: Array,
    squares: Array,
    about: Array,
    covariance: str,
    prior: GaussianPrior | None,
) -> dict[str, Array]:
    """Modes of means and of diagonal or spherical variances given the moments of each cluster.

    Parameters
    ----------
    size : Array, shape (num_clusters,)
    first, squares : Array, shape (num_clusters, num_features)
        Weighted sums of ``x - about`` and of its squares.
    about : Array, shape (num_features,) or (num_clusters, num_features)
    covariance : {"diagonal", "spherical"}
    prior : GaussianPrior or None
        None gives maximum likelihood.
    """
    num_features = first.shape[1]
    if prior is None:
        base, extra, own = jnp.zeros(num_features), 0.0, 0.0
    else:
        base, extra, own = jnp.diag(jnp.asarray(prior.scale)), prior.df + 2.0, 1.0
    mean, spread = shrunk_squares(size, first, squares, about, prior)
    if covariance == "diagonal":
        variance = (spread + base) / (size + extra + own)[:, None]
    else:
        variance = (spread.sum(axis=1) + base.mean()) / (num_features * (size + own) + extra)
    return {"mean": mean, "variance": variance}


def weighted_squares(x: Array, responsibilities: Array) -> tuple[Array, Array, Array, Array]:
    """Weighted sums of one, of ``x - about`` and of its square, and `about`, the mean of the data."""
    about = x.mean(axis=0)  # so that nothing cancels
    shifted = x - about
    sums = responsibilities.T @ shifted, responsibilities.T @ shifted**2
    return responsibilities.sum(axis=0), *sums, about


def shrunk_squares(
    size: Array, first: Array, squares: Array, about: Array, prior: GaussianPrior | None
) -> tuple[Array, Array]:
    """As `shrunk_moments`, a feature at a time: arrays of shape (num_clusters, num_features)."""
    kappa, centre = (0.0, 0.0) if prior is None else (prior.shrinkage, prior.mean - about)
    tiny = jnp.finfo(first.dtype).tiny
    mean = (first + kappa * centre) / jnp.maximum(size + kappa, tiny)[:, None]
    spread = squares - 2 * mean * first + size[:, None] * mean**2 + kappa * (mean - centre) ** 2
    return mean + about, spread


def weights_step(
    count: Array,
    weights: Array,
    graph: LabelGraph,
    concentration: float = 1.0,
    *,
    reading: str = "field",
    sampling: str = "points",
    inference: str | Inference = "exact",
    reduction: float = 0.0,
) -> Array:
    """Mixing weights given expected counts: the Dirichlet mode, or `match_moments` for a field.

    Parameters
    ----------
    count, weights : Array, shape (num_clusters,)
        Expected counts, of points or of chunklets by `sampling`; weights to start from.
    graph : LabelGraph
    concentration : float
    reading : {"field", "relation"}
    sampling : {"points", "chunklets"}
    inference : str or inference object
        Its budget must allow exact sums over the labels of a field.
    reduction : float
        See `match_moments`.

    Returns
    -------
    Array, shape (num_clusters,)
    """
    if weights_are_free(graph, reading, sampling):
        raised = jnp.maximum(count + concentration - 1.0, 1e-10)
        return raised / raised.sum()
    blank = jnp.zeros((graph.num_points, count.shape[0]), count.dtype)

    def log_omega(log_weights: Array) -> Array:
        return partition.log_partition(
            blank, graph, log_weights, sampling=sampling, inference=inference
        )

    return match_moments(count, jnp.log(weights), log_omega, concentration, reduction)


def weights_are_free(graph: LabelGraph, reading: str, sampling: str) -> bool:
    """Tell whether no partition function ties the mixing weights: a Dirichlet is then conjugate."""
    free = reading == "relation" or graph.num_links == 0
    return free or (sampling == "chunklets" and graph.num_edges == 0)


def match_moments(
    count: Array,
    log_weights: Array,
    log_omega: Callable[[Array], Array],
    concentration: float = 1.0,
    reduction: float = 0.0,
) -> Array:
    r"""Maximise :math:`\sum_k n_k\eta_k - \log\Omega(e^\eta) + (\alpha-1)\sum_k\log\pi_k`.

    The function is concave in :math:`\eta` (own derivation: log Omega is the log-partition of an
    exponential family), and at its maximum the prior's expected counts equal `count`. Solved by BFGS
    steps with halving, in place of the thesis' grid (Lu 2008, eq. 2.22); the first metric is
    near that of labels without links. No step needs a second derivative of Omega.

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
        Stop once the gradient has fallen to this share of what it was; by default at rounding.
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
    """Where `match_moments` has got, and the step that it tries next."""

    eta: Array
    value: Array
    grad: Array
    metric: Array
    move: Array
    scale: Array
    first: Array
    done: Array
    number: Any


def _flip_rate_step(agree: Array, graph: LabelGraph, prior: dist.Beta) -> Array:
    """Mode of a flip rate given the probability that each statement agrees with the labels."""
    must = jnp.asarray(graph.pair_weights) > 0
    soft = ~jnp.isinf(jnp.asarray(graph.pair_weights))
    wrong = jnp.where(must, 1.0 - agree, agree)
    num_wrong = jnp.sum(jnp.where(soft, wrong, 0.0)) + prior.concentration1 - 1.0
    total = soft.sum() + prior.concentration1 + prior.concentration0 - 2.0
    return jnp.clip(num_wrong / total, 1e-6, 1.0 - 1e-6)
