"""Fisher information of Gaussian mixtures with their labels, inverted in closed form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from .engines.base import Problem
from .engines.problem.density import place, unconstrain
from .engines.steps.newton import newton_steps

__all__ = ["Natural", "fisher_solve", "natural_metric", "natural_newton"]


class Natural(NamedTuple):
    r"""Natural parameters of a Gaussian mixture, or gradients in them.

    Attributes
    ----------
    logits : Array, shape (num_clusters,)
        Log mixing weights up to a constant.
    shift : Array, shape (num_clusters, num_features)
        :math:`\Sigma_j^{-1} \mu_j`.
    precision : Array, shape (num_clusters, num_features, num_features)
        :math:`\Sigma_j^{-1}`; without the first axis, one for all clusters.
    """

    logits: Array
    shift: Array
    precision: Array

    @classmethod
    def of(cls, params: dict[str, Array]) -> Natural:
        """Return natural parameters from the sites ``weights``, ``mean`` and ``covariance``."""
        precision = jnp.linalg.inv(params["covariance"])
        shift = jnp.matvec(precision, params["mean"])
        return cls(jnp.log(params["weights"]), shift, precision)

    def params(self) -> dict[str, Array]:
        """Return the values of the sites."""
        covariance = jnp.linalg.inv((self.precision + self.precision.mT) / 2)
        mean = jnp.matvec(covariance, self.shift)
        return {"weights": jax.nn.softmax(self.logits), "mean": mean, "covariance": covariance}


def fisher_solve(params: dict[str, Array], num_points: int, slope: Natural) -> Natural:
    r"""Return the step whose product with the Fisher information is a given gradient.

    The information is that of points and labels together, which is block diagonal. Its inverse maps
    changes of moments to changes of natural parameters, so that no system has to be solved:

    .. math:: \delta\mu_j = g_{\upsilon j} / N_j, \quad
              \delta\Sigma_j = -2 g_{\Upsilon j} / N_j - \mu_j \delta\mu_j^\top
              - \delta\mu_j \mu_j^\top, \quad
              \delta\Upsilon_j = -\Upsilon_j \delta\Sigma_j \Upsilon_j, \quad
              \delta\upsilon_j = \delta\Upsilon_j \mu_j + \Upsilon_j \delta\mu_j

    with :math:`N_j = n \pi_j`; one covariance for all sums its own equation over clusters.

    Parameters
    ----------
    params : dict
        Sites ``weights``, ``mean`` and ``covariance``.
    num_points : int
    slope : Natural
        The part for logits sums to 0, as slopes along mixing weights do; that for precisions is
        symmetric.

    References
    ----------
    Law (2006), section 5.7.1, which names the cost; the text is lost and the formulas are derived.
    """
    mean, precision = params["mean"], jnp.linalg.inv(params["covariance"])
    size = num_points * params["weights"]
    move = slope.shift / size[:, None]
    turn = move[:, :, None] * mean[:, None]
    turn = size[:, None, None] * (turn + turn.mT)
    if precision.ndim == 2:
        change = (-2 * slope.precision - turn.sum(axis=0)) / num_points
    else:
        change = (-2 * slope.precision - turn) / size[:, None, None]
    change = -precision @ change @ precision
    shift = jnp.matvec(change, mean) + jnp.matvec(precision, move)
    return Natural(slope.logits / size, shift, change)


def natural_newton(problem: Problem, loss: Callable, args: tuple) -> Callable:
    """Make Newton steps for `ascend`, preconditioned by the inverse Fisher information."""
    return newton_steps(loss, natural_metric(problem, args))


def natural_metric(problem: Problem, args: tuple) -> Callable:
    """Inverse Fisher information in the unconstrained coordinates of a model, for `newton_steps`.

    Slopes pass to natural parameters, and steps back, by the chain rule.
    """

    def metric(free: dict[str, Array]) -> Callable[[Any], Any]:
        trace, _ = place(problem, free, args)
        params = {name: trace[name]["value"] for name in free}
        natural = Natural.of(params)

        def coordinates(natural: Natural) -> dict[str, Array]:
            return unconstrain(trace, natural.params())

        _, pull = jax.vjp(coordinates, natural)

        def step(slope: dict[str, Array]) -> dict[str, Array]:
            found = fisher_solve(params, len(args[0]), *pull(slope))
            return jax.jvp(coordinates, (natural,), (found,))[1]

        return step

    return metric
