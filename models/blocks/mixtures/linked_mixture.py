"""NumPyro distribution over data whose labels are tied by links."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax import Array
from numpyro.distributions import constraints

from sidebayes.common.copies import remark_on_copied_rows

from ..collapsed import Batch, Fitted, ScoresMore
from ..label_inference.label_graph import LabelGraph
from ..side_information.groups import Groups
from .finite_mixture import FiniteMixture
from .linked_categorical import LinkedCategorical
from .row_densities import draw_rows, row_log_densities, varies_by_row

__all__ = ["LinkedMixture"]


class LinkedMixture(FiniteMixture):
    r"""Joint distribution of the data of all points, with their linked labels summed out.

    .. math:: \log p(x) = \log \sum_z \prod_i \pi_{z_i} p(x_i | \theta_{z_i})
              \prod_{(i,j)} e^{w_{ij}[z_i = z_j]} - \log\Omega

    (Lu 2008, eq. 2.14). One value comprises all points: the event shape is ``(num_points, ...)``.

    Parameters
    ----------
    labels : LinkedCategorical
    components : Distribution, batch_shape (num_clusters,) or (num_rows, num_clusters)
        Density of a row in each cluster, the same for all rows or with parameters by row. If it is
        a `MixtureSameFamily`, the components within clusters are latent as well, and have
        log-factors of their own.
    log_side : Array, shape (num_points, num_clusters), optional
        Further log-factors of the labels, such as log-probabilities of known classes.
    groups : Groups, optional
        Point to which each row of the data belongs: all rows of a point share its label. Without
        groups every row is a point.
    """

    arg_constraints: ClassVar[dict] = {}
    pytree_data_fields: ClassVar[tuple[str, ...]] = ("labels", "components", "log_side", "groups")
    components: dist.Distribution

    def __init__(
        self,
        labels: LinkedCategorical,
        components: dist.Distribution,
        log_side: Array | None = None,
        groups: Groups | None = None,
        *,
        validate_args: bool | None = None,
    ) -> None:
        if not isinstance(labels, LinkedCategorical) or not isinstance(
            components, dist.Distribution
        ):
            raise TypeError(
                f"labels is a {type(labels).__name__} and components a {type(components).__name__}; "
                "expected a LinkedCategorical and a NumPyro distribution"
            )
        num_clusters = labels.log_weights.shape[-1]
        points = labels.graph.num_points
        rows = points if groups is None else len(groups)
        if components.batch_shape not in ((num_clusters,), (rows, num_clusters)):
            raise ValueError(
                f"components have batch shape {components.batch_shape}; expected ({num_clusters},), one "
                f"per mixing weight, or ({rows}, {num_clusters}), one per row and mixing weight"
            )
        if groups is not None and groups.num_groups != points:
            raise ValueError(
                f"groups has {groups.num_groups} groups, and there are labels for {points} points; links "
                "join groups, one label each"
            )
        if log_side is not None and jnp.shape(log_side) != (points, num_clusters):
            raise ValueError(
                f"log_side has shape {jnp.shape(log_side)}; expected {(points, num_clusters)}, a "
                "log-factor per point and cluster"
            )
        self.labels, self.components = labels, components
        self.log_side, self.groups = log_side, groups
        super().__init__(event_shape=(rows, *components.event_shape), validate_args=validate_args)

    @property
    def is_density(self) -> bool:  # type: ignore[override]
        """Whether the components are densities of the data, not probabilities of classes."""
        return getattr(self.components, "is_density", True)

    @property
    def has_apart_rows(self) -> bool:  # type: ignore[override]
        """Whether neither links nor groups tie rows."""
        return self.groups is None and not self.labels.graph.num_links

    @property
    def support(self) -> constraints.Constraint:
        """Support of the components, one row per point."""
        return constraints.independent(self.components.support, 1)

    @property
    def varies_by_row(self) -> bool:
        """Whether densities have parameters by row, so that a subset of the rows has no density."""
        return varies_by_row(self.components)

    def remark_on_data(self, name: str, value: Any, draws: Mapping[str, Any]) -> str | None:
        """Say that nearly all rows have a copy."""
        return remark_on_copied_rows(name, value) if self.groups is None else None

    def log_factors(self, value: Array) -> dict[str, Array]:
        """Log-factors that couple data, labels and links.

        Returns
        -------
        dict
            ``unary`` (num_points, num_clusters), without mixing weights; ``log_weights``
            (num_clusters,), or one row per point; ``pair_weights`` (num_links,). Where clusters are
            mixtures, ``unary`` has an axis of components, and ``log_within`` (num_clusters,
            num_components) are their log weights. ``log_side`` is present if it was given.

        Raises
        ------
        ValueError
            If the value does not have one row for each row of the distribution, with the shape of
            the components.
        """
        if jnp.shape(value) != self.event_shape:
            raise ValueError(
                f"the data have shape {jnp.shape(value)}, and components are densities of rows of shape "
                f"{self.components.event_shape}, for {self.event_shape[0]} rows; expected data of shape "
                f"{self.event_shape}"
            )
        factors = {
            "unary": row_log_densities(self.components, value),
            **self.log_factors_of_labels(),
        }
        if isinstance(self.components, dist.MixtureSameFamily):  # clusters are mixtures themselves
            factors["log_within"] = jnp.log(self.components.mixing_distribution.probs)
        return factors

    def label_factors(self, factors: dict[str, Array]) -> Array:
        """Log-factors of the labels alone, shape (num_points, num_clusters)."""
        unary = factors["unary"]
        if "log_within" in factors:
            unary = jax.nn.logsumexp(unary + factors["log_within"], axis=-1)
        if self.groups is not None:
            unary = jax.ops.segment_sum(unary, self.groups.codes, self.groups.num_groups)
        return unary + factors["log_side"] if "log_side" in factors else unary

    def take(self, batch: Batch) -> LinkedMixture | None:
        """The distribution of the rows of a batch; None if densities by row cannot be split."""
        components: Any = self.components
        if self.varies_by_row:
            if not hasattr(components, "take"):
                return None
            components = components.take(batch.rows)
        return self.among(self.labels_of(batch), components, batch.points, batch.groups)

    def tied_by(self, graph: LabelGraph) -> LinkedMixture:
        """The same distribution of the same points, tied by the links of another graph of equal sizes."""
        labels = self.labels.among(graph, self.labels.pair_weights)
        return self.among(labels, self.components, slice(None), self.groups)

    def among(
        self,
        labels: LinkedCategorical,
        components: dist.Distribution,
        points: Any,
        groups: Groups | None,
    ) -> LinkedMixture:
        """The same kind of distribution for some of the points, given their labels and components."""
        known = None if self.log_side is None else self.log_side[points]
        return LinkedMixture(labels, components, known, groups)

    def beside_value(self) -> dict[str, Callable[[], Array] | None]:
        """What the density covers besides its value, for any mixture and for the `components`."""
        own = self.components
        return super().beside_value() | dict(
            own.beside_value() if isinstance(own, ScoresMore) else {}
        )

    @property
    def has_side_factors(self) -> bool:
        """Whether points have log-factors of their labels besides their density."""
        return self.log_side is not None

    def class_statements(self) -> tuple[Array, Array] | None:
        """Statements about classes of the points, for `gaussian_pass`; None if there are none."""
        return None

    def draw(self, rng_key: Array, value: Array) -> tuple[Array, Array | None]:
        """Draw all labels jointly, and the components within clusters that are mixtures."""
        factors = self.log_factors(value)
        unary = self.label_factors(factors)
        if "log_within" not in factors:
            return self.labels.draw_given(rng_key, unary), None
        key_labels, key_within = jax.random.split(rng_key)
        labels = self.labels.draw_given(key_labels, unary)
        joint = factors["unary"] + factors["log_within"]
        own = jnp.take_along_axis(joint, self._by_row(labels)[:, None, None], axis=1)[:, 0]
        return labels, jax.random.categorical(key_within, own)

    def statistic(self, latent: tuple[Array, Array | None]) -> dict[str, Array]:
        """Sufficient statistics of drawn labels, with the structure of `log_factors`."""
        labels, within = latent
        found = self.label_statistic(labels)
        rows = found["unary"] = self._by_row(found["unary"])
        if within is not None:
            weights = self.components.mixing_distribution.probs  # type: ignore[attr-defined]
            inside = rows[:, :, None] * jax.nn.one_hot(within, weights.shape[-1])[:, None]
            own = weights.ndim == 3  # each row has weights of its own
            found |= {"unary": inside, "log_within": inside if own else inside.sum(axis=0)}
        return found

    def _by_row(self, values: Array) -> Array:
        """Values of the points, repeated for each of their rows."""
        return values if self.groups is None else values[self.groups.codes]

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        """Draw labels, then data; statements and known classes are not held fixed."""
        key_labels, key_data = jax.random.split(key)
        return self.data_given(key_data, self.labels.sample(key_labels, sample_shape), sample_shape)

    def data_given(self, key: Array, labels: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        """Draw data given labels of shape (*sample_shape, num_points)."""
        by_row = jnp.moveaxis(self._by_row(jnp.moveaxis(labels, -1, 0)), 0, -1)
        return draw_rows(key, self.components, by_row, sample_shape)

    def draw_data(self, rng_key: Array, fitted: Fitted | None = None) -> Array:
        """Draw labels given links, known classes and the data of fitted groups; then data."""
        key_fitted, key_labels, key_data = jax.random.split(rng_key, 3)
        own = None
        if fitted is not None and self.groups is not None:
            own, _ = fitted.fn.draw(key_fitted, fitted.value)
        return self.data_given(key_data, self.draw_labels(key_labels, own, fitted))
