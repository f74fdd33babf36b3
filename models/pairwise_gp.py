"""Gaussian-process classifier learned from statements about pairs of points."""

from __future__ import annotations

from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import Array
from jax.core import Tracer
from jax.typing import ArrayLike
from numpy.typing import NDArray
from numpyro.distributions import constraints

from .blocks.collapsed import NamedArray
from .blocks.label_inference.approximate import Inference
from .blocks.label_inference.label_graph import LabelGraph, as_label_graph
from .blocks.label_inference.potts import FORBIDDEN, logsumexp
from .blocks.mixtures.linked_categorical import LinkedCategorical
from .blocks.mixtures.linked_mixture import LinkedMixture
from .blocks.mixtures.reliability import learned_pair_weights
from .blocks.side_information.links import Links

__all__ = ["FactorisedPairs", "JensenPairs", "LatentClassifier", "pairwise_gp"]


def pairwise_gp(
    x: Annotated[ArrayLike, "points features"],
    links: Annotated[Links | LabelGraph | None, "points"] = None,
    *,
    num_clusters: int,
    variance: float | dist.Distribution = 10.0,
    likelihood: str = "exact",
    flip_rate: dist.Distribution | str | None = None,
    inference: str | Inference = "exact",
) -> None:
    r"""Gaussian-process classifier with pairwise observations (Lu 2008, chapter 4).

    .. math:: f_m \sim \mathcal{GP}(0, \tfrac{\lambda}{2} x x^T), \quad
              P(z_i = m) = \operatorname{softmax}(f_{1i}, \dots, f_{Mi})_m, \quad
              P(\text{statement about } i, j) = \sigma(w_{ij})^{[z_i = z_j]}
              (1 - \sigma(w_{ij}))^{[z_i \ne z_j]}

    Latent functions are linear in the rows of `x`, so these are features of a kernel: those of
    `GraphKernel.features` make functions that vary slowly along clusters, raw data a linear
    classifier. The labels are summed out, and the coefficients are whitened. Of two classes the
    difference of the functions is the thesis' f, of variance :math:`\lambda`.

    Parameters
    ----------
    x : array_like, shape (num_points, num_features)
        Features; a kernel :math:`x x^T` of unit mean diagonal gives `variance` its meaning.
    links : Links, LabelGraph or None
        Hard and soft statements; without any the posterior is the prior.
    num_clusters : int
    variance : float or Distribution
        :math:`\lambda`, of the difference of two latent functions; a distribution to learn it. When
        small, the mode is at zero.
    likelihood : {"exact", "factorised", "jensen"}
        How labels of overlapping statements are summed out: jointly, a product over statements (Lu
        2008, eq. 4.22; exact where no point is in two), or Jensen's lower bound (eq. 4.23, soft
        links only). Labels given the functions are inferred jointly in any case.
    flip_rate : Distribution, "learned" or None
        See `ppc`.
    inference : {"exact", "mean_field", "belief_propagation", "gibbs_labels"} or inference object
        What to do with loopy connected sets too wide for exact summation.

    References
    ----------
    Lu (2008), eqs. 4.1, 4.17-4.24. Functions of permuted labels are equally probable, so marginal
    label probabilities of the full posterior are uniform (proposition 1): use a mode, or what does
    not change with the labels' numbers.
    """
    if x is None:
        raise ValueError(
            "pairwise_gp has no density of points; pass x, e.g. GraphKernel.features()"
        )
    if likelihood not in _MIXTURES:
        raise ValueError(f"likelihood = {likelihood!r}; expected one of {sorted(_MIXTURES)}")
    x = jnp.asarray(x)
    graph = as_label_graph(links, len(x), num_clusters, inference)
    given = graph.pair_weights
    if likelihood == "jensen" and isinstance(given, np.ndarray) and graph.links.hard.any():
        raise ValueError(
            "likelihood='jensen' takes soft links only, its bound on a hard one is -inf; pass "
            "links.with_strength(4.0), or likelihood='factorised'"
        )
    if isinstance(variance, dist.Distribution):
        variance = numpyro.sample("variance", variance)
    elif not variance > 0:
        raise ValueError(f"variance = {variance!r}; expected a positive number or a distribution")
    weights = learned_pair_weights(graph, flip_rate, "relation")
    with numpyro.plate("clusters", num_clusters):
        unit = dist.Normal().expand([x.shape[1]]).to_event(1)
        coefficients = numpyro.sample("coefficients", unit, infer={"event_dims": ["features"]})
    labels = LinkedCategorical(
        jnp.zeros(num_clusters),
        graph,
        reading="relation",
        pair_weights=weights,
        inference=inference,
    )
    classifier = LatentClassifier(jnp.sqrt(variance / 2) * coefficients)
    numpyro.sample("statements", _MIXTURES[likelihood](labels, classifier), obs=x)


class LatentClassifier(dist.Distribution):
    r"""Probability of each class given a row of features, in the place of the row's density.

    A discriminative model leaves the density of features open; up to that constant, class and
    features have the joint density :math:`P(z = m \mid x)`, which stands here for
    :math:`p(x \mid z = m)` beside equal mixing weights of one.

    Parameters
    ----------
    coefficients : Array, shape (num_clusters, num_features)
        Of the latent functions, whose softmax the probabilities are (Lu 2008, eq. 4.1).
    """

    arg_constraints: ClassVar[dict] = {}
    support = constraints.real_vector
    pytree_data_fields = ("coefficients",)
    is_density: ClassVar[bool] = False

    def __init__(self, coefficients: Array, *, validate_args: bool | None = None) -> None:
        self.coefficients = coefficients
        shape = jnp.shape(coefficients)
        super().__init__(shape[:1], shape[1:], validate_args=validate_args)

    def log_prob(self, value: Array) -> Array:
        """Log-probabilities of the classes at rows of shape (num_points, 1, num_features)."""
        latent = jnp.squeeze(value, -2) @ self.coefficients.T
        return jax.nn.log_softmax(latent, axis=-1)


def _overlap(pairs: NDArray) -> bool:
    """Whether a point is in two pairs."""
    return bool(np.bincount(pairs.ravel()).max(initial=0) > 1)


class FactorisedPairs(LinkedMixture):
    r"""Statements as if the labels in each were drawn anew (Lu 2008, eq. 4.22).

    .. math:: J = \prod_{(i,j)} [\sigma(w_{ij}) S_{ij} + \sigma(-w_{ij}) (1 - S_{ij})], \qquad
              S_{ij} = \sum_m P(z_i = m) P(z_j = m)

    Exact where no point is in two statements, else neither a lower nor an upper bound.
    """

    def approximation(self) -> str | None:
        """Say so where points are in two statements or more."""
        found = super().approximation()
        pairs = self.labels.graph.pairs
        # while a program is traced nobody knows which points they join
        overlap = isinstance(pairs, Tracer) or _overlap(self.labels.graph.links.pairs)
        own = "statements factorised" if overlap else None
        return ", ".join(filter(None, (own, found))) or None

    @property
    def has_curvature(self) -> bool:
        """A product over statements is smooth, whatever becomes of labels afterwards."""
        return True

    def log_prob(self, value: Array) -> Array:
        """Approximate log-probability of the statements."""
        return self._by_statement(value).sum()

    def _by_statement(self, value: Array) -> Array:
        same, differ = self._agreement(value)
        right, wrong = self._reliability()
        return jnp.logaddexp(right + same, wrong + differ)

    def by_unit(self, value: Array) -> Array:
        """Terms of `log_prob` by connected set, zero-padded."""
        graph = self.labels.graph
        owner = jnp.asarray(graph.connected_set)[jnp.asarray(graph.pairs)[:, 0]]
        return jax.ops.segment_sum(self._by_statement(value), owner, graph.num_nodes)

    def summaries(self, value: Array) -> tuple[dict[str, NamedArray], Array]:
        """Labels are inferred jointly; terms are those of this likelihood."""
        return self.posterior(value), self.by_unit(value)

    def _reliability(self) -> tuple[Array, Array]:
        """Log-probability of each statement where labels agree, and where they differ."""
        given = jnp.asarray(self.labels.graph.pair_weights)
        weights = jnp.where(jnp.isinf(given), given, jnp.asarray(self.labels.pair_weights))
        pairs = jnp.asarray(self.labels.graph.pairs)
        stated = pairs[:, 0] != pairs[:, 1]  # spare rows say nothing
        right, wrong = jax.nn.log_sigmoid(weights), jax.nn.log_sigmoid(-weights)
        return jnp.where(stated, right, 0.0), jnp.where(stated, wrong, 0.0)

    def _agreement(self, value: Array) -> tuple[Array, Array]:
        """Log-probabilities that the labels of each pair agree, and that they differ."""
        unary = self.log_factors(value)["unary"]
        first, second = (unary[end] for end in jnp.asarray(self.labels.graph.pairs).T)
        table = first[:, :, None] + second[:, None, :]
        equal = np.eye(unary.shape[1], dtype=bool)
        apart = jnp.where(equal, FORBIDDEN, table).reshape(len(table), equal.size)
        return logsumexp(first + second), logsumexp(apart)


class JensenPairs(FactorisedPairs):
    r"""Jensen's bound on the log-probability of the statements (Lu 2008, eq. 4.23).

    .. math:: \sum_{(i,j)} [S_{ij} \log\sigma(w_{ij}) + (1 - S_{ij}) \log\sigma(-w_{ij})]
    """

    def approximation(self) -> str:
        """Name the bound."""
        return ", ".join(filter(None, ("Jensen's bound", LinkedMixture.approximation(self))))

    def _by_statement(self, value: Array) -> Array:
        """Lower bound on the log-probability of each statement."""
        same, differ = map(jnp.exp, self._agreement(value))
        right, wrong = self._reliability()
        return same * right + differ * wrong


_MIXTURES: dict[str, type[LinkedMixture]] = {
    "exact": LinkedMixture,
    "factorised": FactorisedPairs,
    "jensen": JensenPairs,
}
