"""A mixture classifier that was learned in another domain, as the source of an adaptation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike
from numpy.typing import NDArray
from scipy.special import logsumexp, softmax

from sidebayes.common.arrays import plain_array, point_table, real_array
from sidebayes.common.class_names import check_class_names
from sidebayes.common.columns import column_order, refuse_odd_names
from sidebayes.common.fields import rebuilt
from sidebayes.common.magnitudes import counted, shown

from ..components.gaussians.gaussian import Gaussian
from ..side_information.partial_labels import PartialLabels

__all__ = ["SourceMixture"]


@jax.tree_util.register_pytree_node_class
@dataclass(frozen=True, eq=False)
class SourceMixture:
    r"""Gaussian components that belong to classes: mixture discriminant analysis.

    A pytree, whose arrays may be traced, except for the classes of the components.

    .. math:: P(c \mid x) \propto \sum_{k \in \mathcal{M}_c} w_k\, \mathcal{N}(x | \mu_k, \Sigma_k)

    `sidebayes.fit_source` learns one from rows whose class is known.

    Parameters
    ----------
    weights : array_like, shape (num_components,)
        Weights :math:`\pi_c \alpha_{cl}` of the components of all classes together; they sum to one.
    mean : array_like, shape (num_components, num_features)
    covariance : array_like, shape (num_components, num_features, num_features)
    component_class : array_like of int, shape (num_components,)
        Class of each component; every class from 0 on has at least one.
    feature_names : sequence of str, optional
        Names of the features, by which tables with names of columns are matched.
    class_names : sequence of str, optional
        Names of the classes in their order, by which known classes of a target are matched.

    Raises
    ------
    ValueError
        If shapes disagree, weights are not a distribution, a covariance is not positive definite,
        or a class has no component.

    References
    ----------
    Hastie and Tibshirani (1996), J. R. Stat. Soc. B 58, 155-176. Raghuram (2014), eq. 4.1.
    """

    weights: NDArray
    mean: NDArray
    covariance: NDArray
    component_class: NDArray
    feature_names: tuple[str, ...] | None = None
    class_names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        for name in ("weights", "mean", "covariance"):
            value = np.asarray(real_array(f"SourceMixture.{name}", getattr(self, name)), float)
            object.__setattr__(self, name, value)
        classes = plain_array("SourceMixture.component_class", self.component_class)
        size, width = self.weights.size, self.mean.shape[-1] if self.mean.ndim else 0
        shapes = (size,), (size, width), (size, width, width)
        given = self.weights.shape, self.mean.shape, self.covariance.shape
        if given != shapes or not size * width:
            raise ValueError(
                f"SourceMixture: weights, mean and covariance have shapes {self.weights.shape}, "
                f"{self.mean.shape} and {self.covariance.shape}; expected (K,), (K, d) and (K, d, d)"
            )
        if not (self.weights > 0).all() or abs(self.weights.sum() - 1) > 1e-6:
            raise ValueError("SourceMixture: weights must be positive and sum to one")
        if classes.dtype.kind not in "iu" or classes.shape != (size,):
            raise ValueError(
                f"SourceMixture: component_class = {shown(self.component_class)}; expected {size} integers"
            )
        if set(classes.tolist()) != set(range(int(classes.max()) + 1)):
            raise ValueError(
                f"SourceMixture: component_class names the classes {sorted(set(classes.tolist()))}; "
                "every class from 0 on needs a component"
            )
        if not np.isfinite(self.mean).all() or not _are_positive_definite(self.covariance):
            raise ValueError(
                "SourceMixture: covariance must hold positive definite matrices, and mean finite numbers"
            )
        object.__setattr__(self, "component_class", classes.astype(int))
        if self.feature_names is not None:
            names = tuple(map(str, self.feature_names))
            refuse_odd_names(names, "SourceMixture: feature_names")
            if len(names) != width:
                raise ValueError(
                    f"SourceMixture: feature_names has {counted(len(names), 'name')} for {width} features; "
                    "give one each"
                )
            object.__setattr__(self, "feature_names", names)
        known = check_class_names(self.class_names)
        if known is not None and len(known) != self.num_classes:
            raise ValueError(
                f"SourceMixture: class_names has {counted(len(known), 'name')} for {self.num_classes} "
                "classes; give one each"
            )
        object.__setattr__(self, "class_names", known)

    def tree_flatten(self) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Return the parameters, and the classes and names as constants."""
        classes = tuple(self.component_class.tolist())
        names = self.feature_names, self.class_names
        return (self.weights, self.mean, self.covariance), (classes, *names)

    @classmethod
    def tree_unflatten(cls, aux: tuple[Any, ...], children: tuple[Any, ...]) -> Self:
        """Rebuild without any check."""
        classes, *names = aux
        return rebuilt(cls, (*children, np.asarray(classes), *names))

    @property
    def num_components(self) -> int:
        """Number of components of all classes together."""
        return len(self.weights)

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return int(self.component_class.max()) + 1

    @property
    def num_features(self) -> int:
        """Number of features."""
        return self.mean.shape[1]

    @property
    def table(self) -> NDArray[np.float64]:
        """One if a component belongs to a class, else zero; shape (num_components, num_classes)."""
        return np.eye(self.num_classes)[self.component_class]

    def numbered(self, labels: PartialLabels, name: str = "labels") -> PartialLabels:
        """Known classes under the numbers of this source, with the names if there are any.

        Parameters
        ----------
        labels : PartialLabels
        name : str
            Name of the argument, for messages.

        Raises
        ------
        ValueError
            If there are more classes, names that the source does not have, or names on one side
            only.
        """
        if labels.names is not None and self.class_names is None:
            raise ValueError(
                f"{name} names the classes {list(labels.names)}, and source has {self.num_classes} classes "
                "by number; give the numbers that they have there, -1 where a class is not known, or learn "
                "the source with the names"
            )
        if labels.names is not None:
            return labels.under(self.class_names, name, "the source")
        most = int(labels.classes.max(initial=-1))
        if most >= self.num_classes:
            raise ValueError(
                f"{name} has class {most}; expected 0 to {self.num_classes - 1}, those of the source"
            )
        states = labels.admissible(self.num_classes).sum(axis=1) < self.num_classes
        if self.class_names is not None and states.any():
            raise ValueError(
                f"{name} gives classes by number, and source has the names {list(self.class_names)}; give "
                f"names, or PartialLabels({name}, source.class_names) if the numbers are in this order"
            )
        return PartialLabels(labels.values, self.class_names)

    def log_joint(self, x: ArrayLike) -> Array:
        """Log joint densities of points and components, shape (num_points, num_components)."""
        order = column_order(x, "x", self.feature_names, "the source")
        x = point_table("x", x)
        x = x if order is None else x[:, order]
        if x.shape[1] != self.num_features:
            raise ValueError(f"x has {x.shape[1]} features; the source has {self.num_features}")
        return _log_joint(x, self.weights, self.mean, self.covariance)

    def log_density(self, x: ArrayLike) -> NDArray[np.float64]:
        """Log densities of points, shape (num_points,)."""
        with jax.enable_x64(True):
            return logsumexp(np.asarray(self.log_joint(x)), axis=1)

    def predict_proba(self, x: ArrayLike) -> NDArray[np.float64]:
        """Probabilities of the classes of points, shape (num_points, num_classes) (eq. 4.1)."""
        with jax.enable_x64(True):
            return softmax(np.asarray(self.log_joint(x)), axis=1) @ self.table

    def predict(self, x: ArrayLike) -> NDArray:
        """Most probable class of points, by its name if classes have names; shape (num_points,)."""
        best = self.predict_proba(x).argmax(axis=1)
        return best if self.class_names is None else np.array(self.class_names)[best]

    def moved(self, reach: float, seed: int, number: int) -> NDArray[np.float64]:
        r"""Starting values of the means: those of the source, and others in a box around them.

        The others are uniform on :math:`\mu_k \pm r \sqrt{\text{diag}\,\Sigma_k}`. The thesis'
        section 4.3 prints variances in place of standard deviations, which have another unit.

        Parameters
        ----------
        reach : float
            r, in standard deviations.
        seed, number : int

        Returns
        -------
        ndarray, shape (number, num_components, num_features)
            The first are the means of the source.
        """
        box = reach * np.sqrt(np.diagonal(self.covariance, axis1=1, axis2=2))
        drawn = np.random.default_rng(seed).uniform(-1.0, 1.0, (number, *box.shape))
        return self.mean + box * np.where(np.arange(number)[:, None, None] > 0, drawn, 0.0)

    def __repr__(self) -> str:
        """Numbers of components, classes and features."""
        each = np.bincount(self.component_class).tolist()
        return f"SourceMixture({self.num_features} features, {each} components by class)"


def _are_positive_definite(matrices: NDArray) -> bool:
    """Whether covariances are positive definite, independent of the units of the features."""
    variance = np.diagonal(matrices, axis1=-2, axis2=-1)
    if not np.isfinite(matrices).all() or not (variance > 0).all():
        return False
    unit = np.sqrt(variance)
    scaled = matrices / unit[:, :, None] / unit[:, None]
    return bool((np.linalg.eigvalsh(scaled) > 0).all())


@jax.jit
def _log_joint(x: Array, weights: Array, mean: Array, covariance: Array) -> Array:
    return jnp.log(weights) + Gaussian(mean, covariance).log_prob(x[:, None])
