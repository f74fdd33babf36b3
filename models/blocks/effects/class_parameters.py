"""Parameters of a mixture of linear mixed models, separate for each class or shared by all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
import numpyro
from jax import Array
from jax.core import Tracer
from jax.typing import ArrayLike
from numpy.typing import NDArray
from numpyro.distributions.transforms import Transform

from ..block import Observation
from ..collapsed import Collapsed
from ..side_information.groups import Groups
from ..side_information.partial_labels import PartialLabels
from .class_starts import class_starts
from .densities.expected import Regression
from .densities.mixture import EffectsMixture
from .densities.structure import Structure
from .one_pass import class_pass
from .parameters import MixedParameters, read_options
from .priors import EffectsPrior

__all__ = ["ClassParameters", "class_parameters"]

_SHARED = ("covariance", "noise")

_NO_NOISE = 1e-5
"""Fraction of the largest noise below which the noise of a class counts as zero."""


class ClassParameters(MixedParameters):
    """`MixedParameters` of every class of a mixture; some may be shared.

    Parameters
    ----------
    y, fixed, random, outputs, structure, prior
        See `MixedParameters`; a prior applies to each class.
    subjects : Groups
    num_clusters : int
    shared : tuple of str
        "covariance" and "noise", if all classes share it.
    shared_terms : tuple of int
        Columns of the fixed effects that have one coefficient for all classes.
    known : PartialLabels, optional
        Known classes of some subjects, with which the starts of runs agree.
    """

    of_terms: ClassVar[tuple[str, ...]] = ("coefficients", "shared_coefficients")

    def __init__(
        self,
        y: ArrayLike | None,
        fixed: ArrayLike,
        random: ArrayLike,
        outputs: ArrayLike | None,
        structure: Structure,
        prior: EffectsPrior | None,
        *,
        subjects: Groups,
        num_clusters: int,
        shared: tuple[str, ...] = (),
        shared_terms: tuple[int, ...] = (),
        known: PartialLabels | None = None,
    ) -> None:
        super().__init__(y, fixed, random, outputs, structure, prior, subjects)
        self.num_clusters, self.shared, self.known = num_clusters, shared, known
        self.common = np.array(shared_terms, int)
        self.own = np.setdiff1d(np.arange(self.num_terms), self.common)

    @property
    def remedy(self) -> str:  # type: ignore[override]
        """What to do about a collapsed class."""
        options = {
            "prior=EffectsPrior.weak(...)": self.prior is None,
            "shared='noise'": "noise" not in self.shared,
            "fewer clusters": self.num_clusters > 1,
        }
        return self.offered("pass", options)

    @property
    def term_blocks(self) -> list[NDArray[np.int64]]:
        """Terms that all classes share, and terms with coefficients for each class."""
        return [block for block in (self.common, self.own) if len(block)]

    @property
    def factors(self) -> tuple[str, ...]:
        """Log-factors of `EffectsMixture` that depend on the data."""
        return ("precision", "shift", "unary")

    @contextmanager
    def _classes(self, what: str, dim: int = -1) -> Iterator[None]:
        """Plate of the classes, unless they share it."""
        if what in self.shared:
            yield
        else:
            with numpyro.plate("clusters", self.num_clusters, dim=dim):
                yield

    def coefficients(self) -> Array:
        """Sample the fixed effects, shape (num_clusters, num_terms)."""
        own, common = np.arange(len(self.own)), len(self.common)
        with self._classes("coefficients"):
            if not common:
                return self._sample("coefficients", "coefficients", self.own, "terms")
            mine = self._sample("coefficients", "own_coefficients", self.own, "own_terms")
        name = "shared_coefficients"
        theirs = self._sample(name, name, self.common, "shared_terms")
        blank = jnp.zeros((self.num_clusters, self.num_terms), theirs.dtype)
        whole = blank.at[:, self.own[own]].set(mine).at[:, self.common].set(theirs)
        with (
            numpyro.plate("clusters", self.num_clusters, dim=-2),
            numpyro.plate("terms", self.num_terms),
        ):
            return numpyro.deterministic("coefficients", whole)

    def _sample(self, role: str, name: str, terms: NDArray[np.int64], dim: str) -> Array:
        """Sample the coefficients of some terms."""
        return self.declare(role, name, self._law(terms), [dim])

    def scale_tril(self) -> Array:
        """Sample the Cholesky factors, shape (num_clusters, num_effects, num_effects)."""
        with self._classes("covariance"):
            found = self._factor()
        shape = (self.num_clusters, *[self.structure.size] * 2)
        root = jnp.broadcast_to(found, shape)
        with numpyro.plate("clusters", self.num_clusters, dim=-3):
            self._note(root)
        return root

    def noise(self) -> Array:
        """Sample the standard deviations of the noise, shape (num_clusters, num_outputs)."""
        with self._classes("noise", -1 if self.outputs is None else -2):
            found = super().noise()
        return jnp.broadcast_to(found, (self.num_clusters, self.num_outputs))

    def bijector(self, role: str, bijector: Transform) -> Transform:
        """Coordinates in units of the data, the same for all classes."""
        if role not in ("coefficients", "shared_coefficients"):
            return super().bijector(role, bijector)
        terms = self.own if role == "coefficients" else self.common
        return self._affine(terms)

    def starts(
        self, value: Any, shapes: Mapping[str, tuple[int, ...]], seed: int, num_starts: int
    ) -> dict[str, Any]:
        """Coefficients fitted to classes of subjects whose effects are close to each other.

        Covariances and noise start at the values of `MixedParameters`. See `class_starts`.
        """
        found = super().starts(value, shapes, seed, num_starts)
        assert self.subjects is not None  # asked for in the constructor
        known = None if self.known is None else self.known.values
        if not found or any(isinstance(data, Tracer) for data in (self.subjects.codes, known)):
            return found
        admissible = None
        if known is not None:
            admissible = PartialLabels(np.asarray(known)).admissible(self.num_clusters)
        coefficients = class_starts(
            np.asarray(value, float),
            np.asarray(self.fixed),
            np.asarray(self.random),
            self.subjects,
            None if self.outputs is None else np.asarray(self.outputs),
            self._units(np, value),
            num_clusters=self.num_clusters,
            own=self.own,
            admissible=admissible,
            seed=seed,
            num_starts=num_starts,
        )
        found["coefficients"] = coefficients
        if len(self.common):
            found["shared_coefficients"] = self._units(np, value).start[self.common]
        return found

    def statistics(self, observation: Observation) -> Regression:
        """Regressions of the classes, unless `one_pass` has computed them."""
        found = observation.expected.get("moments")
        return super().statistics(observation) if found is None else found

    def has_one_pass(self, fn: Collapsed, others: AbstractSet[str] = frozenset()) -> bool:
        """Whether no links tie the subjects, and all have the same weights."""
        free = isinstance(fn, EffectsMixture) and fn.labels.is_shared
        return free and others <= {"log_weights"}

    def one_pass(self, fn: Any, value: Array) -> tuple[Array, dict[str, Any]]:
        """Return the result of `class_pass`, which keeps no array by subject and class."""
        log_partition, found = class_pass(fn, value, self.structure, self.term_blocks)
        return log_partition, {"moments": found, "log_weights": found.total}

    def degenerate(self, values: Mapping[str, Any]) -> tuple[int, str] | None:
        """First class whose noise is negligible compared with that of the others."""
        if "noise" in self.shared:
            return None
        noise = np.asarray(values["noise"]).reshape(self.num_clusters, -1)
        share = (noise / noise.max(axis=0)).min(axis=1)
        worst = int(np.argmin(share))
        return (worst, "its noise vanished") if share[worst] < _NO_NOISE else None

    def _columns(self, number: int) -> NDArray[np.int64]:
        """Numbers of coefficients: first shared terms, then those of each class, then the factors."""
        num_entries = number - self.num_terms
        index = np.empty((self.num_clusters, number), int)
        numbers = np.arange(self.num_clusters)[:, None]
        start = len(self.common)
        index[:, self.common] = np.arange(start)
        index[:, self.own] = start + numbers * len(self.own) + np.arange(len(self.own))
        start += self.num_clusters * len(self.own)
        turn = 0 if "covariance" in self.shared else numbers
        index[:, self.num_terms :] = start + turn * num_entries + np.arange(num_entries)
        return index

    def _noise(self, squares: Array, num_rows: Array) -> Array:
        if "noise" not in self.shared:
            return super()._noise(squares, num_rows)
        pooled = super()._noise(squares.sum(axis=0), num_rows.sum(axis=0))
        return jnp.broadcast_to(pooled, squares.shape)

    def _mean_spread(self, found: Regression) -> Array:
        if "covariance" not in self.shared:
            return super()._mean_spread(found)
        return (found.spread.sum(axis=0) / found.total.sum())[None]

    def _coefficients(self, fixed: Array) -> dict[str, Array]:
        known = {"coefficients": fixed[:, self.own]}
        return known | ({"shared_coefficients": fixed[0, self.common]} if len(self.common) else {})


def class_parameters(
    y: ArrayLike | None,
    fixed: ArrayLike,
    random: ArrayLike,
    subjects: Groups,
    outputs: ArrayLike | None = None,
    *,
    num_clusters: int,
    covariance: str | tuple[int, ...] = "full",
    shared: Sequence[str] = (),
    shared_terms: Sequence[int] = (),
    prior: str | EffectsPrior = "flat",
    known: PartialLabels | None = None,
) -> ClassParameters:
    """Block of the parameters of a mixture of linear mixed models, from the options of a model.

    Parameters
    ----------
    y, fixed, random, outputs
        See `MixedParameters`.
    subjects : Groups
    num_clusters : int
    covariance, prior
        See `mixed_parameters`.
    shared : sequence of {"covariance", "noise"}
    shared_terms : sequence of int
    known : PartialLabels, optional

    Raises
    ------
    ValueError
        If an option is unknown, `outputs` are not indicators, or `shared_terms` are not columns.
    """
    structure, own = read_options(random, outputs, covariance, prior)
    names = (shared,) if isinstance(shared, str) else tuple(shared)
    if not set(names) <= set(_SHARED):
        raise ValueError(f"shared = {shared!r}; expected some of {_SHARED}")
    num_terms = jnp.shape(fixed)[1]
    terms = tuple(shared_terms)
    whole = all(isinstance(term, int | np.integer) and 0 <= term < num_terms for term in terms)
    if not whole or len(set(terms)) < len(terms) or len(terms) == num_terms:
        raise ValueError(
            f"shared_terms = {shared_terms!r}; expected numbers of some of the {num_terms} columns of "
            "fixed effects, each once, counted from 0; at least one column is left to the classes"
        )
    return ClassParameters(
        y,
        fixed,
        random,
        outputs,
        structure,
        own,
        subjects=subjects,
        num_clusters=num_clusters,
        shared=names,
        shared_terms=tuple(map(int, sorted(terms))),
        known=known,
    )
