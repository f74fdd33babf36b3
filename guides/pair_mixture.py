"""Closed-form EM steps of the mixture with pairwise relations, and its evidence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from scipy.special import gammaln, multigammaln
from sidebayes.models.blocks import partition
from sidebayes.models.blocks.approximate import Inference
from sidebayes.models.blocks.components import GaussianPrior, resolve_prior
from sidebayes.models.blocks.label_graph import LabelGraph, as_label_graph
from sidebayes.models.blocks.linked import LinkedMixture
from sidebayes.models.pair_mixture import law_options

from .engines.base import Problem
from .engines.density import trace_model
from .engines.gaussian_stats import weighted_moments
from .engines.programs import compiled
from .engines.starts import initial_values
from .engines.surrogate import expectation
from .ppc import covariance_step, variance_step, weighted_squares, weights_step

__all__ = [
    "annealed_start",
    "augmented_weights",
    "log_evidence",
    "pair_mixture_e_step",
    "pair_mixture_m_step",
]


def pair_mixture_e_step(**options: Any) -> Callable[..., tuple[Array, dict[str, Any]]]:
    """E-step that also tells the components of a class apart (Yu 2016, eqs. A.5-A.10, corrected).

    Given the class of a point, its component depends on that point alone, so the probabilities are
    ``unary`` (num_points, num_clusters) times ``within`` (num_points, num_clusters,
    num_components).
    """
    return _e_step


def _e_step(problem: Problem, params: dict, args: tuple) -> tuple[Array, dict[str, Any]]:
    log_joint, posterior = expectation(problem, params, args)
    mixture = trace_model(problem, params, args)["x"]["fn"]
    return log_joint, {"x": posterior["x"] | {"within": _within(mixture, args[0])}}


def _within(mixture: LinkedMixture, x: Array) -> Array:
    """Probability of each component given point and class."""
    joint = mixture.components.component_log_probs(jnp.expand_dims(x, 1))
    return jax.nn.softmax(joint, axis=-1)


def pair_mixture_m_step(
    *,
    num_clusters: int,
    num_components: int = 1,
    covariance: str = "full",
    prior: str | GaussianPrior = "empirical",
    concentration: float = 1.0,
    pair_law: str = "shared",
    inference: str | Inference = "exact",
    num_points: int | None = None,
    solve_weights: Callable[..., Array] = weights_step,
) -> Callable[..., dict[str, Array]]:
    """M-step for `pair_mixture`, after `pair_mixture_e_step`.

    Parameters are the model's own options. Means, covariances and component weights are conjugate
    modes (Yu 2016, eqs. A.12-A.18, with a prior).

    Parameters
    ----------
    solve_weights : callable
        Of the class weights (eq. 4.19): `weights_step` maximises, in closed form under
        ``pair_law="joint"`` and by Newton steps in the logits else; `augmented_weights` improves.
    """
    return partial(
        _m_step,
        shape=(num_clusters, num_components),
        covariance=covariance,
        prior=prior,
        concentration=concentration,
        solve_weights=partial(solve_weights, inference=inference, **law_options(pair_law)),
    )


def _m_step(
    params: Mapping[str, Array],
    args: tuple,
    posterior: Mapping[str, Any],
    *,
    shape: tuple[int, int],
    covariance: str,
    prior: str | GaussianPrior,
    concentration: float,
    solve_weights: Callable[..., Array],
) -> dict[str, Array]:
    x = jnp.asarray(args[0])
    slope = posterior["x"]
    num_cells = shape[0] * shape[1]
    graph = as_label_graph(args[1] if len(args) > 1 else None, x.shape[0])
    resolved = resolve_prior(prior, x, num_cells)
    share = (slope["unary"][:, :, None] * slope["within"]).reshape(-1, num_cells)
    if covariance in ("full", "tied"):
        mean = params["mean"].reshape(num_cells, -1)
        new = covariance_step(weighted_moments(x, share, mean), mean, covariance, resolved)
    else:
        new = variance_step(*weighted_squares(x, share), covariance, resolved)
    new = {name: value.reshape(params[name].shape) for name, value in new.items()}
    count = slope["log_weights"]
    new["weights"] = solve_weights(count, params["weights"], graph, concentration)
    if shape[1] > 1:
        raised = share.sum(axis=0).reshape(shape) + concentration - 1.0
        raised = jnp.maximum(raised, 1e-10)
        new["component_weights"] = raised / raised.sum(axis=1, keepdims=True)
    return new


def augmented_weights(
    count: Array,
    weights: Array,
    graph: LabelGraph,
    concentration: float = 1.0,
    *,
    reading: str = "field",
    sampling: str = "points",
    inference: str | Inference = "exact",
) -> Array:
    r"""Raise the objective of `weights_step` by imputing the labelings that the links rejected.

    .. math:: \alpha \propto n + \sum_c n_c \alpha / \Omega_c - \partial \log\Omega / \partial
              \log\alpha

    where a connected component c of :math:`n_c` draws is accepted with probability
    :math:`\Omega_c`: EM for the weights, which never falls and has the maximum for its only fixed
    point. One sum over labels a step and no linear system, but short steps where links tie many
    points together. For disjoint pairs the added counts are :math:`2\alpha^2 / (1 - \sum\alpha^2)` a
    cannot-link and, where must-linked points draw one by one, :math:`2\alpha(1 - \alpha) /
    \sum\alpha^2` a must-link (own derivation for other graphs).

    Parameters and return value are those of `weights_step`.
    """
    if reading == "relation":
        return weights_step(count, weights, graph, concentration, reading=reading)
    blank = jnp.zeros((graph.num_points, len(weights)), weights.dtype)
    log_omega, pull = jax.vjp(
        lambda eta: partition.by_component(
            blank, graph, eta, sampling=sampling, inference=inference
        ),
        jnp.log(weights),
    )
    pair_weights = jnp.asarray(graph.pair_weights)
    most = jnp.where(jnp.isinf(pair_weights), 0.0, jnp.maximum(pair_weights, 0.0))
    owner = jnp.asarray(graph.component)[jnp.asarray(graph.pairs)[:, 0]]
    log_accepted = log_omega.at[owner].add(-most)
    draws = jnp.asarray(graph.node_size)
    draws = draws if sampling == "points" else jnp.minimum(draws, 1.0)  # spare rows hold none
    draws = jax.ops.segment_sum(draws, jnp.asarray(graph.node_component), graph.num_nodes)
    imputed = weights * jnp.sum(draws * jnp.exp(-log_accepted))
    imputed = imputed - pull(jnp.ones_like(log_omega))[0]
    raised = jnp.maximum(count + imputed + concentration - 1.0, 1e-10)
    return raised / raised.sum()


def annealed_start(
    problem: Problem, *, seed: int = 0, num_steps: int = 100, heat: float = 0.3
) -> dict[str, Array]:
    """Start for EM by deterministic annealing, for where k-means partitions lead to poor modes.

    Steps of EM whose E-step raises the densities of the classes to a power that grows from `heat`
    to 1; links hold throughout.

    Parameters
    ----------
    problem : Problem
        A `pair_mixture` with its M-step.
    seed : int
        Of the k-means partition to begin with.
    num_steps : int
    heat : float in (0, 1]
        1 is EM itself; too small a power melts all clusters into one.

    Returns
    -------
    dict
        Values of the latent sites, for ``init=``.

    References
    ----------
    Ueda and Nakano (1998), Neural Networks 11, 271-282, doi:10.1016/S0893-6080(97)00133-0.
    """
    if not 0 < heat <= 1:
        raise ValueError(f"heat = {heat}; expected a number in (0, 1]")
    if problem.m_step is None:
        raise ValueError("problem has no m_step; pass m_step=pair_mixture_m_step(**options)")
    m_step = problem.m_step
    first = {name: value[0] for name, value in initial_values(problem, seed, 1).items()}

    def build(bare: Problem) -> Callable:
        def step(params: dict, power: Array, args: tuple) -> dict[str, Array]:
            mixture = trace_model(bare, params, args)["x"]["fn"]
            factors = mixture.log_factors(args[0])
            warm = {name: power * factors[name] for name in ("unary", "log_weights")}
            slope = jax.grad(mixture.log_partition)(factors | warm)
            posterior = slope | {"within": _within(mixture, args[0])}
            return m_step(params, args, {"x": posterior})

        return lambda params, powers, args: lax.scan(
            lambda params, power: (step(params, power, args), None), params, powers
        )[0]

    inputs = first, jnp.geomspace(heat, 1.0, num_steps), problem.args
    program, _ = compiled("anneal", problem, None, build, *inputs)
    return program(*inputs)


def log_evidence(problem: Problem, params: Mapping[str, Array]) -> float:
    r"""Log marginal likelihood of a number of components, after Cheeseman and Stutz.

    .. math:: \log p(x | \hat\theta) + \log p(\hat D) - \log p(\hat D | \hat\theta)

    with the expected complete data :math:`\hat D` at the mode; Gaussians and component weights are
    integrated out in closed form, and the components of a class may be numbered in any order. Class
    weights are held at the mode: there are as many of them whatever the number of components.

    Parameters
    ----------
    problem : Problem
        A `pair_mixture` with full covariances and a proper prior.
    params : mapping
        Its mode, as EM finds it.

    Raises
    ------
    ValueError
        For other covariances, or a flat prior, which has no evidence.

    References
    ----------
    Chickering and Heckerman (1997), Machine Learning 29, 181-212, doi:10.1023/A:1007469629108.
    """
    if problem.kwargs.get("covariance", "full") != "full":
        raise ValueError("log_evidence is for covariance='full'; fit such a model")
    x = jnp.asarray(problem.args[0])
    shape = params["mean"].shape[:2]
    num_cells, num_features = shape[0] * shape[1], x.shape[1]
    prior = resolve_prior(problem.kwargs.get("prior", "empirical"), x, num_cells)
    if prior is None:
        raise ValueError(
            "prior = 'flat' has no evidence; pass prior='empirical' or a GaussianPrior"
        )
    site = trace_model(problem, params)["x"]
    slope = _e_step(problem, dict(params), problem.args)[1]["x"]
    share = np.asarray(slope["unary"][:, :, None] * slope["within"]).reshape(-1, num_cells)
    gaussians = site["fn"].components.component_distribution
    at_mode = np.asarray(gaussians.log_prob(x[:, None, None, :])).reshape(-1, num_cells)

    mean = jnp.reshape(params["mean"], (num_cells, num_features))
    moments = weighted_moments(x, share, mean)
    centre, spread = (np.asarray(value) for value in moments.estimates(mean))
    count = share.sum(axis=0)
    kappa, df, scale = prior.shrinkage, float(prior.df), np.asarray(prior.scale)
    offset = centre - np.asarray(prior.mean)
    pull = (kappa * count / (kappa + count))[:, None, None]
    scatter = scale + count[:, None, None] * spread + pull * offset[:, :, None] * offset[:, None]
    gaussian = (
        multigammaln((df + count) / 2, num_features)
        - multigammaln(df / 2, num_features)
        + df / 2 * np.linalg.slogdet(scale)[1]
        - (df + count) / 2 * np.linalg.slogdet(scatter)[1]
        + num_features / 2 * (np.log(kappa / (kappa + count)) - count * np.log(np.pi))
    )
    sizes = count.reshape(shape)
    prior_size = float(problem.kwargs.get("concentration", 1.0))
    within = gammaln(sizes + prior_size).sum() - gammaln((sizes + prior_size).sum(axis=1)).sum()
    within += shape[0] * (gammaln(shape[1] * prior_size) - shape[1] * gammaln(prior_size))
    weights = np.asarray(params["component_weights"]) if shape[1] > 1 else np.ones(shape)
    complete = gaussian.sum() - (share * at_mode).sum()
    complete += within - (sizes * np.log(np.maximum(weights, 1e-300))).sum()
    observed = float(site["fn"].log_prob(site["value"]))
    return observed + float(complete) + shape[0] * float(gammaln(shape[1] + 1))
