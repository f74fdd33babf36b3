"""Prototypes of classes and their scales, as sites with units and starting values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import Array
from jax.core import Tracer
from jax.typing import ArrayLike
from numpy.typing import NDArray
from numpyro.distributions import constraints
from numpyro.distributions.transforms import (
    AffineTransform,
    ComposeTransform,
    IndependentTransform,
    Transform,
)

from sidebayes.common.arrays import is_traced, plain_array
from sidebayes.common.fields import check_integer
from sidebayes.common.magnitudes import counted, listed, shown

from ..block import Block
from ..components.gaussian_prior import GaussianPrior, resolve_prior
from ..mixtures.data_units import data_units, fitted_statistic, remark_on_units
from ..side_information.partial_labels import PartialLabels, as_partial_labels
from .class_table import either
from .prototypes import Prototypes, without_prototypes
from .stated import shares_of_classes, stated_classes, untold_classes

__all__ = ["PrototypeSites", "class_prototypes", "prototype_prior", "prototype_table"]


def prototype_table(
    prototypes: ArrayLike | Sequence[tuple[int, int]], num_clusters: int, num_classes: int
) -> tuple[Array | NDArray, Array | NDArray]:
    """Component and class of every prototype, as two arrays; traced arrays are not checked.

    Raises
    ------
    TypeError, ValueError
        If these are not pairs in range.
    """
    check_integer("num_classes", num_classes)
    if isinstance(prototypes, Tracer):
        return prototypes[:, 0], prototypes[:, 1]
    given = plain_array("prototypes", prototypes)
    if given.ndim != 2 or given.shape[1] != 2 or given.dtype.kind not in "iu":
        raise TypeError(
            f"prototypes = {shown(prototypes)}; expected (component, class) of each, such as ((0, 0), (0, "
            "1), (1, 1)); sidebayes.grow_prototypes finds them"
        )
    clusters, classes = given.astype(np.int64).T
    for name, values, size in (
        ("component", clusters, num_clusters),
        ("class", classes, num_classes),
    ):
        bad = np.flatnonzero((values < 0) | (values >= size))
        if len(bad):
            raise ValueError(
                f"prototypes[{bad[0]}] is of {name} {values[bad[0]]}; expected 0..{size - 1}"
            )
    return clusters, classes


def class_prototypes(
    x: ArrayLike | None,
    num_clusters: int,
    num_classes: int,
    prototypes: Sequence[tuple[int, int]],
    prior: str | GaussianPrior,
    known: PartialLabels | None = None,
    label_noise: float = 0.0,
) -> Prototypes:
    """Sample prototypes, shape (num_prototypes, num_features), and a scale for each component.

    Components without prototypes have the class shares of the labelled rows of the fit.

    Parameters are those of `pfgl`; scales are sampled as logarithms.

    Raises
    ------
    TypeError, ValueError
        If `prototypes` are not pairs in range or, without `label_noise`, leave no class for a
        labelled row.
    """
    clusters, classes = prototype_table(prototypes, num_clusters, num_classes)
    known = None if known is None else as_partial_labels(known)
    if not is_traced(label_noise) and label_noise == 0:
        _refuse_classless(known, clusters, classes, num_clusters, num_classes)
    block = PrototypeSites(x, num_clusters, num_classes, clusters, classes, prior, known)
    points, scale = block.sample()
    clusters, stated = jnp.asarray(clusters), stated_classes(known, num_classes)
    with numpyro.plate("classes", num_classes):
        shares = fitted_statistic("class_shares", shares_of_classes(stated, num_classes))
    table = jnp.tile(shares, (num_clusters, 1))
    bare = without_prototypes(clusters, num_clusters)
    return Prototypes(points, jnp.asarray(classes), clusters, scale, table, bare)


def _refuse_classless(
    known: PartialLabels | None,
    clusters: Array | NDArray,
    classes: Array | NDArray,
    num_clusters: int,
    num_classes: int,
) -> None:
    """Refuse rows that admit none of the prototypes' classes; traced values are not checked."""
    if known is None or any(isinstance(v, Tracer) for v in (known.values, clusters, classes)):
        return
    if len(np.unique(clusters)) < num_clusters:
        return  # a component without prototypes has every class
    offered = np.isin(np.arange(num_classes), classes)
    bad = np.flatnonzero(~(known.admissible(num_classes) & offered).any(axis=1))
    if len(bad):
        raise ValueError(
            f"no prototype has a class that is stated for {counted(len(bad), 'row')}: {listed(bad)}. "
            f"Prototypes have the classes {listed(np.flatnonzero(offered))}; add some of the others, or pass "
            "label_noise"
        )


def prototype_prior(prior: GaussianPrior, num_clusters: int) -> tuple[Array, Array]:
    """Centre and standard deviation of prototypes: twice that of the data under a components' prior."""
    scale = jnp.asarray(prior.scale)
    inside = jnp.sqrt(jnp.diagonal(scale))
    return jnp.asarray(prior.mean), 2 * inside * num_clusters ** (1 / len(scale))


class PrototypeSites(Block):
    """Prototypes and scales, which engines update numerically."""

    factor: ClassVar[str] = "log_side"
    roles: ClassVar[tuple[str, ...]] = ("prototype", "prototype_log_scale")

    def __init__(
        self,
        x: ArrayLike | None,
        num_clusters: int,
        num_classes: int,
        clusters: Array | NDArray,
        classes: Array | NDArray,
        prior: str | GaussianPrior,
        known: PartialLabels | None,
    ) -> None:
        self.num_clusters, self.num_classes = num_clusters, num_classes
        self.clusters, self.classes = clusters, classes
        self.prior, self.known = resolve_prior(prior, x, num_clusters), known
        features = (
            jnp.shape(jnp.asarray(x))[1]
            if self.prior is None
            else len(jnp.asarray(self.prior.mean))
        )
        self.centre, self.unit = data_units(x, features)
        if x is None and self.prior is not None:
            self.centre, self.unit = prototype_prior(self.prior, num_clusters)

    def sample(self) -> tuple[Array, Array]:
        """Sample the prototypes and the scales."""
        size = len(self.unit)
        if self.prior is None:
            around: Any = dist.ImproperUniform(constraints.real_vector, (), (size,))
            width: Any = dist.ImproperUniform(constraints.real, (), ())
        else:
            around = dist.Normal(*prototype_prior(self.prior, self.num_clusters)).to_event(1)
            variance = jnp.diagonal(jnp.asarray(self.prior.scale)).sum()
            width = dist.Normal(-jnp.log(2 * variance), 2.0)
        with numpyro.plate("prototypes", len(self.classes)):
            points = self.declare("prototype", "prototype", around, ("features",))
        with numpyro.plate("clusters", self.num_clusters):
            log_scale = self.declare("prototype_log_scale", "log_scale", width)
        return points, jnp.exp(log_scale)

    def bijector(self, role: str, bijector: Transform) -> Transform:
        """Coordinates in units of the data."""
        units: Transform = AffineTransform(-jnp.log(jnp.sum(self.unit**2)), 1.0)
        if role == "prototype":
            units = IndependentTransform(AffineTransform(self.centre, self.unit), 1)
        return ComposeTransform([bijector, units])

    def remark(self, values: Mapping[str, Any]) -> str | None:
        """Say which prototypes are arbitrary, of classes that no row is known to have; see `Remarking`."""
        if is_traced(self.classes):
            return None
        offered = np.asarray(self.classes)
        free = [one for one in untold_classes(self.known, self.num_classes) if one in offered]
        if not free:
            return None
        return (
            f"No row is known to have class {either(free)}, so that its prototypes, and predictions of it, "
            "are arbitrary: name rows of it, or give it no prototypes"
        )

    def remark_on_data(self, name: str, value: Any, draws: Mapping[str, Any]) -> str | None:
        """Say that the units of the features determine which prototypes are near."""
        return remark_on_units(name, np.asarray(value, float))

    def code_length(self, role: str) -> float:
        r"""Half a log number of labelled rows per parameter, plus each prototype's component and class.

        .. math:: P\,(\tfrac d2 \log N_l + \log C + \log L) + \tfrac L2 \log N_l

        (Raghuram 2014, section 2.4.5).
        """
        told = 0
        if self.known is not None:
            told = int(np.sum(~np.asarray(self.known.admissible(self.num_classes)).all(axis=1)))
        half = np.log(max(told, 1)) / 2
        if role == "prototype_log_scale":
            return self.num_clusters * half
        each = len(self.unit) * half + np.log(self.num_classes) + np.log(self.num_clusters)
        return len(self.classes) * each

    def starts(
        self, value: Any, shapes: Mapping[str, tuple[int, ...]], seed: int, num_starts: int
    ) -> dict[str, Any]:
        """Prototypes at rows of their classes, drawn at random, and the scale of the data."""
        x = np.asarray(value, float)
        rng, chosen = np.random.default_rng(seed), []
        known = None if self.known is None or isinstance(self.known.values, Tracer) else self.known
        classes = np.full(len(x), -1) if known is None else np.asarray(known.classes)
        for own in self.classes:
            rows = np.flatnonzero(classes == own)
            chosen.append(rng.choice(rows if len(rows) else len(x), num_starts))
        log_scale = -np.log(2 * x.var(axis=0).sum() or 1.0)
        return {"prototype": x[np.stack(chosen, axis=1)], "prototype_log_scale": log_scale}
