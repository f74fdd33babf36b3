"""Mixtures whose components have classes, with known classes of some rows."""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax import Array
from jax.typing import ArrayLike
from numpyro.distributions import constraints

from sidebayes.common.arrays import is_traced

from ..mixtures.linked_categorical import LinkedCategorical
from ..mixtures.linked_mixture import LinkedMixture
from ..side_information.groups import Groups
from ..side_information.partial_labels import PartialLabels, as_partial_labels
from .stated import labelled_points

__all__ = [
    "ClassMixture",
    "ClassifiedMixture",
    "NamedClassMixture",
    "StatedClasses",
    "log_of",
    "log_statements",
    "sample_classified",
]


class StatedClasses(dist.Distribution):
    """Stated classes of rows given their data, -1 in rows without a statement.

    Models use it to simulate statements besides rows; `ClassMixture` integrates classes out.

    Parameters
    ----------
    probs : Array, shape (num_points, num_classes)
        Probabilities of the statement about each row.
    told : Array of bool, shape (num_points,), optional
        Rows with a statement; all by default.
    """

    arg_constraints: ClassVar[dict] = {}
    pytree_data_fields: ClassVar[tuple[str, ...]] = ("probs", "told")

    def __init__(self, probs: Array, told: Array | None = None) -> None:
        self.probs, self.told = probs, told
        super().__init__(event_shape=probs.shape[:1], validate_args=False)

    @property
    def support(self) -> constraints.Constraint:
        """Integers from -1 on."""
        return constraints.independent(constraints.integer_interval(-1, self.probs.shape[1] - 1), 1)

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        """Draw a class for each row that has a statement."""
        shape = (*sample_shape, len(self.probs))
        drawn = jax.random.categorical(key, jnp.log(self.probs), shape=shape)
        return drawn if self.told is None else jnp.where(self.told, drawn, -1)

    def log_prob(self, value: Array) -> Array:
        """Log probability of the statements."""
        own = jnp.take_along_axis(self.probs, jnp.maximum(value, 0)[:, None], axis=1)[:, 0]
        return jnp.where(value >= 0, jnp.log(own), 0.0).sum()


class ClassifiedMixture(LinkedMixture):
    """Mixture with statements about the classes of its points; base of the laws of classes.

    Subclasses define how the class of a point depends on its component, and possibly on its data.
    """

    pytree_data_fields: ClassVar[tuple[str, ...]] = ("stated",)
    stated: Array | None
    """Probability of the statement about each point given its class, (num_points, num_classes)."""

    @property
    def is_told(self) -> Array:
        """Mask of the points about which something is stated."""
        assert self.stated is not None  # asked for with statements only
        return labelled_points(self.stated)

    @property
    def is_told_some(self) -> bool:
        """Whether anything is stated about the classes of points."""
        return self.stated is not None

    def told(self) -> Array | None:
        """Probability of the statement about each point, given its class."""
        return self.stated

    def remark(self) -> str | None:
        """Say that no data separate the classes if none is known of any point."""
        if not self.is_untold or self.num_classes == 1:
            return None
        return (
            "No class is known of any point, so that only priors separate the classes, and predictions "
            "of them are arbitrary: name the classes of some points"
        )

    def untold_densities(self, value: Array) -> Array:
        """Log density of each point in each component."""
        factors = self.without_statements().log_factors(value)
        return LinkedMixture.label_factors(self, factors)

    def check_stated(self, num_classes: int) -> None:
        """Refuse statements of another shape."""
        wanted = (self.labels.graph.num_points, num_classes)
        if self.stated is not None and jnp.shape(self.stated) != wanted:
            raise ValueError(
                f"stated has shape {jnp.shape(self.stated)}; expected {wanted}, the probability of what is "
                "stated about each point, given its class"
            )

    def without_statements(self) -> ClassifiedMixture:
        """The same law without any statement."""
        raise NotImplementedError

    def statements(
        self, value: Array, known: PartialLabels | None = None, label_noise: float = 0.0
    ) -> StatedClasses:
        """Law of the statements about points, given their data alone.

        Parameters
        ----------
        value : Array
            Data of all points.
        known : PartialLabels, optional
            Only points about which it states something get a class.
        label_noise : float
            See `stated_classes`.
        """
        prob = self.without_statements().class_probabilities(value)
        size = prob.shape[1]
        wrong = label_noise / max(size - 1, 1)
        told = None
        if known is not None:
            told = ~jnp.asarray(as_partial_labels(known).admissible(size)).all(axis=1)
        return StatedClasses(wrong + (1.0 - label_noise - wrong) * prob, told)


class ClassMixture(ClassifiedMixture):
    r"""Data of all points, with labels and classes summed out.

    A point draws its component z, then its data and its class, independently of each other:

    .. math:: p(x_i, y_i) = \sum_k \pi_k\, p(x_i | \theta_k) \sum_c \beta_{kc}\, P(y_i | c)

    (Miller and Uyar 1997; Raghuram 2014, eq. 2.2). Points without a statement have the density of
    the mixture, so that their classes contribute nothing to the density or to the table. Labels may
    also be tied by links.

    Parameters
    ----------
    labels, components
        See `LinkedMixture`.
    classes : Array, shape (num_clusters, num_classes)
        Table :math:`\beta` of P(class | component), rows on the simplex.
    stated : Array, shape (num_points, num_classes), optional
        Probability of the statement about a point given its class, see `stated_classes`; rows of
        ones state nothing.
    groups : Groups, optional
        See `LinkedMixture`.
    """

    pytree_data_fields: ClassVar[tuple[str, ...]] = ("classes",)

    def __init__(
        self,
        labels: LinkedCategorical,
        components: dist.Distribution,
        classes: Array,
        stated: Array | None = None,
        groups: Groups | None = None,
        *,
        validate_args: bool | None = None,
    ) -> None:
        super().__init__(labels, components, groups=groups, validate_args=validate_args)
        if jnp.ndim(classes) != 2 or len(classes) != self.num_clusters:
            raise ValueError(
                f"classes has shape {jnp.shape(classes)}; expected ({self.num_clusters}, num_classes), the "
                "probabilities of the classes in each component"
            )
        self.classes, self.stated = classes, stated
        self.check_stated(self.num_classes)

    @property
    def num_classes(self) -> int:  # type: ignore[override]
        """Number of classes."""
        return jnp.shape(self.classes)[1]

    def without_statements(self) -> ClassMixture:
        """The same law without any statement."""
        return type(self)(self.labels, self.components, self.classes, groups=self.groups)

    def among(
        self,
        labels: LinkedCategorical,
        components: dist.Distribution,
        points: Any,
        groups: Groups | None,
    ) -> ClassMixture:
        """The same kind of distribution for some of the points, given their labels and components."""
        stated = None if self.stated is None else self.stated[points]
        return ClassMixture(labels, components, self.classes, stated, groups)

    def log_factors(self, value: Array) -> dict[str, Array]:
        """Log-factors of `LinkedMixture`, and ``log_classes`` (num_clusters, num_classes)."""
        return super().log_factors(value) | {"log_classes": log_of(self.classes)}

    def label_factors(self, factors: dict[str, Array]) -> Array:
        """Log-factors of the labels alone, with classes summed out."""
        found = super().label_factors(factors)
        told = self._log_told(factors["log_classes"])
        return found if told is None else found + told

    def _log_told(self, log_classes: Array) -> Array | None:
        """Log probability of each statement given the component, shape (num_points, num_clusters)."""
        return None if self.stated is None else log_statements(self.stated, jnp.exp(log_classes))

    def class_statements(self) -> tuple[Array, Array]:
        """Probabilities of the statements given the classes, and of the classes given the component."""
        points = self.labels.graph.num_points
        stated = jnp.ones((points, self.num_classes)) if self.stated is None else self.stated
        return stated, self.classes

    def class_probabilities(self, value: Array) -> Array:
        """Probabilities of the classes of all points, shape (num_points, num_classes)."""
        member = self.responsibilities(value)
        if self.stated is None:
            return member @ self.classes
        log_told = self._log_told(log_of(self.classes))
        assert log_told is not None  # there are statements
        told = jnp.exp(log_told)
        return (member / told) @ self.classes * jnp.where(self.is_told[:, None], self.stated, 1.0)

    def classes_within(self, value: Array) -> Array:
        """P(class | component)."""
        return self.classes

    def draw(self, rng_key: Array, value: Array) -> tuple[Any, Array]:
        """Draw labels jointly, and the class of each point."""
        key_labels, key_classes = jax.random.split(rng_key)
        latent = super().draw(key_labels, value)
        logits = log_of(self.classes)[latent[0]]
        if self.stated is not None:
            logits = logits + log_of(self.stated)
        return latent, jax.random.categorical(key_classes, logits)

    def statistic(self, latent: tuple[Any, Any]) -> dict[str, Array]:
        """Sufficient statistics of drawn labels and classes; classes count only where stated."""
        within, classes = latent
        member = jax.nn.one_hot(within[0], self.num_clusters)
        drawn = jax.nn.one_hot(classes, self.num_classes)
        counts = jnp.zeros(jnp.shape(self.classes))
        if self.stated is not None:
            counts = member.T @ jnp.where(self.is_told[:, None], drawn, 0.0)
        return super().statistic(within) | {"log_classes": counts}

    def side_factors(self) -> Array | None:
        """Log-factors of the labels due to the statements."""
        return self._log_told(log_of(self.classes))


class NamedClassMixture(ClassMixture):
    """`ClassMixture` whose prior distinguishes the components, so that they may not be renumbered."""

    is_exchangeable = False

    def remark(self) -> str | None:
        """None: components keep the classes that the prior gives them."""
        return None


def sample_classified(
    mixture: ClassifiedMixture,
    x: ArrayLike | None,
    known: PartialLabels | None,
    label_noise: float = 0.0,
) -> None:
    """Observe points and the statements about their classes, or simulate both.

    Points are site ``x``. If they are observed, the statements are part of this site; if they are
    simulated, statements are site ``known``.

    Parameters
    ----------
    mixture : ClassifiedMixture
    x : array_like, shape (num_points, ...), or None
    known : PartialLabels, optional
        Simulated points about which it states something get a statement; by default all points do.
    label_noise : float
        See `stated_classes`.
    """
    if x is not None:
        told = None if known is None else as_partial_labels(known)
        mixture.is_untold = told is None or not (is_traced(told.values) or told.states_any)
        numpyro.sample("x", mixture, obs=x)
        return
    unstated = mixture.without_statements()
    rows = numpyro.sample("x", unstated)
    numpyro.sample("known", unstated.statements(rows, known, label_noise))


def log_statements(stated: Array, classes: Array) -> Array:
    """Log probabilities of the statements about points, given their components; zero without statement.

    Parameters
    ----------
    stated : Array, shape (num_points, num_classes)
        See `ClassMixture`.
    classes : Array, shape (num_clusters, num_classes)

    Returns
    -------
    Array, shape (num_points, num_clusters)
    """
    return jnp.where(labelled_points(stated)[:, None], log_of(stated @ classes.T), 0.0)


def log_of(probs: Array) -> Array:
    """Logarithm that is finite, with zero gradient, where a probability is zero."""
    return jnp.log(jnp.maximum(probs, jnp.finfo(jnp.result_type(probs)).tiny))
