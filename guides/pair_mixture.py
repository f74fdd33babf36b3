"""Starts, weights by imputation, and evidence of the mixture with pairwise relations."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from scipy.special import gammaln, multigammaln
from sidebayes.models.blocks.components.gaussian_prior import resolve_prior
from sidebayes.models.blocks.components.gaussians.gaussian_stats import weighted_moments
from sidebayes.models.blocks.label_inference import partition
from sidebayes.models.blocks.label_inference.approximate import Inference
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph

from .engines.base import Problem
from .engines.plumbing.programs import compiled
from .engines.problem.density import trace_model
from .engines.steps.starts import initial_values
from .engines.steps.surrogate import expectation
from .engines.steps.updates import closed_forms, maximised, plan_updates

__all__ = [
    "annealed_start",
    "augmented_weights",
    "log_evidence",
]


def augmented_weights(
    count: Array,
    weights: Array,
    graph: LabelGraph,
    concentration: float = 1.0,
    *,
    reading: str = "field",
    weight_per: str = "point",
    inference: str | Inference = "exact",
) -> Array:
    r"""Raise the surrogate in the class weights by imputing the labelings that the links rejected.

    .. math:: \alpha \propto n + \sum_c n_c \alpha / \Omega_c - \partial \log\Omega / \partial
              \log\alpha

    where a connected set c of :math:`n_c` draws is accepted with probability
    :math:`\Omega_c`: EM for the weights, which never falls and has the maximum for its only fixed
    point. One sum over labels per step and no linear system, but short steps where links tie many
    points together. For disjoint pairs the added counts are :math:`2\alpha^2 / (1 - \sum\alpha^2)` a
    cannot-link and, where must-linked points draw one by one, :math:`2\alpha(1 - \alpha) /
    \sum\alpha^2` a must-link (own derivation for other graphs).

    `MixingWeights.mode` maximises the same surrogate (Yu 2016, eq. 4.19) instead.

    Parameters
    ----------
    count, weights : Array, shape (num_clusters,)
        Expected counts, of points or of chunklets by `weight_per`; weights to start from.
    graph : LabelGraph
    concentration : float
    reading, weight_per, inference
        See `LinkedCategorical`.

    Returns
    -------
    Array, shape (num_clusters,)
    """
    if reading == "relation":
        raised = jnp.maximum(count + concentration - 1.0, 1e-10)
        return raised / raised.sum()
    blank = jnp.zeros((graph.num_points, len(weights)), weights.dtype)
    log_omega, pull = jax.vjp(
        lambda eta: partition.by_connected_set(
            blank, graph, eta, weight_per=weight_per, inference=inference
        ),
        jnp.log(weights),
    )
    pair_weights = jnp.asarray(graph.pair_weights)
    most = jnp.where(jnp.isinf(pair_weights), 0.0, jnp.maximum(pair_weights, 0.0))
    owner = jnp.asarray(graph.connected_set)[jnp.asarray(graph.pairs)[:, 0]]
    log_accepted = log_omega.at[owner].add(-most)
    draws = jnp.asarray(graph.node_size)
    draws = draws if weight_per == "point" else jnp.minimum(draws, 1.0)  # spare rows hold none
    draws = jax.ops.segment_sum(draws, jnp.asarray(graph.node_connected_set), graph.num_nodes)
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
        A `pair_mixture`.
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
    plan = plan_updates(problem)
    first = {name: value[0] for name, value in initial_values(problem, seed, 1).items()}

    def build(bare: Problem) -> Callable:
        def step(params: dict, power: Array, args: tuple) -> dict[str, Array]:
            mixture = trace_model(bare, params, args)["x"]["fn"]
            factors = mixture.log_factors(args[0])
            heated = {
                "unary": power * mixture.label_factors(factors),
                "log_weights": power * factors["log_weights"],
                "pair_weights": factors["pair_weights"],
            }
            slope = jax.grad(mixture.log_partition)(heated)
            if "log_within" in factors:  # components of a class are told apart at full heat
                within = jax.nn.softmax(factors["unary"] + factors["log_within"], axis=-1)
                slope["unary"] = slope["unary"][:, :, None] * within
                slope["log_within"] = slope["unary"].sum(axis=0)
            return closed_forms(bare, plan, params, args, {"x": slope}, maximised)

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
    slope = expectation(problem, dict(params), problem.args)[1]["x"]
    share = np.asarray(slope["unary"]).reshape(-1, num_cells)
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
