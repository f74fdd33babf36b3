"""Kinds of features besides normal ones (counts, categories, ordered levels), with conjugate priors."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import Array
from jax.scipy.special import gammaln, xlogy

from sidebayes.common.columns import column_name
from sidebayes.common.magnitudes import shown

__all__ = ["Columns", "Kind"]

_LEAST = 1e-10
"""Least rate, and least probability of a level, at a mode."""

_SAME = 1e-4
"""Tolerance for the value of a level, as a share of the least distance between two levels."""


class Kind(NamedTuple):
    r"""Features with one kind of density.

    Attributes
    ----------
    name : {"count", "category", "ordered"}
        Poisson with rate :math:`\lambda \sim \text{Gamma}`; categorical with probabilities that are
        Dirichlet; or binomial on the levels 0, 1, ..., whose probability is a Beta variable.
    levels : int
        Number of levels, zero for counts.
    columns : tuple of int
        Numbers of the features' columns in the table.
    values : tuple of tuple of float
        For each column of categories, the values of its levels in the table. Everywhere except in
        the table, levels are coded 0, 1, ...
    """

    name: str
    levels: int
    columns: tuple[int, ...]
    values: tuple[tuple[float, ...], ...] = ()

    @property
    def site(self) -> str:
        """Name and role of the site of its parameters."""
        return {
            "count": "rate",
            "category": f"category_{self.levels}",
            "ordered": f"ordered_{self.levels}",
        }[self.name]

    @property
    def num_parameters(self) -> int:
        """Number of free parameters of one density."""
        return self.levels - 1 if self.name == "category" else 1

    @property
    def dims(self) -> tuple[str, ...]:
        """Names of the axes of the parameters of all its features."""
        own = f"{self.site}_features"
        return (own, f"levels_{self.levels}") if self.name == "category" else (own,)

    def of(self, x: Array) -> tuple[Array, Array]:
        """Columns of this kind in a table, with coded levels and zero if missing, and a mask of known values.

        A value that is not a level of its column has a code beyond all levels.
        """
        own = x[..., np.array(self.columns)]
        known = ~jnp.isnan(own)
        own = jnp.where(known, own, 0.0)
        if not self.values:
            return own, known
        values = jnp.asarray(self.values, own.dtype)
        away = jnp.abs(own[..., None] - values)
        code = jnp.where((away <= self._tolerance[:, None]).any(-1), away.argmin(-1), self.levels)
        return jnp.where(known, code.astype(own.dtype), 0.0), known

    def grid(self) -> Array:
        """All codes, including that of values which are not a level, shape (num_codes, num_features)."""
        num_codes = self.levels + (self.name == "category")
        return jnp.broadcast_to(jnp.arange(0.0, num_codes)[:, None], (num_codes, len(self.columns)))

    def indicators(self, value: Array) -> Array:
        """Indicators of the codes of values, zero if missing, shape (num_points, num_codes, num_features)."""
        x, known = self.of(value)
        return ((x[:, None] == self.grid()) & known[:, None]).astype(value.dtype)

    @property
    def _tolerance(self) -> np.ndarray:
        """Tolerance for the values of levels, by column."""
        return _SAME * np.diff(np.sort(self.values)).min(axis=1)

    def decoded(self, codes: Array) -> Array:
        """Values in the table for codes (..., num_features)."""
        if not self.values:
            return codes
        return jnp.asarray(self.values)[np.arange(len(self.columns)), codes.astype(int)]

    def log_prob(self, x: Array, params: Array) -> Array:
        """Log probability of values, shape (..., num_features)."""
        return self.log_kernel(x, params) + self.log_base(x)

    def log_kernel(self, x: Array, params: Array) -> Array:
        """Terms of `log_prob` that depend on parameters."""
        if self.name == "count":
            return x * jnp.log(jnp.maximum(params, _LEAST)) - params
        if self.name == "ordered":
            log_on, log_off = (jnp.log(jnp.maximum(p, _LEAST)) for p in (params, 1.0 - params))
            return x * log_on + (self.levels - 1 - x) * log_off
        log_params = jnp.log(jnp.maximum(params, _LEAST))
        known = (self._hot(x) * log_params).sum(axis=-1)
        return jnp.where(x < self.levels, known, np.log(_LEAST))

    def log_base(self, x: Array) -> Array:
        """Terms of `log_prob` without parameters, which are the same in all clusters."""
        if self.name == "category":
            return jnp.zeros_like(x)
        if self.name == "count":
            return -gammaln(x + 1.0)
        most = self.levels - 1
        return gammaln(most + 1.0) - gammaln(x + 1.0) - gammaln(most - x + 1.0)

    def _hot(self, x: Array) -> Array:
        return jax.nn.one_hot(x.astype(int), self.levels, dtype=x.dtype)

    def statistics(self, x: Array, weights: Array) -> Array:
        """Weighted sums over rows (first axis), shape (num_features, num_statistics)."""
        if self.name == "category":
            return jnp.einsum("ndl,nd->dl", self._hot(x), weights)
        rest = jnp.ones_like(x) if self.name == "count" else self.levels - 1 - x
        return jnp.stack([(weights * x).sum(axis=0), (weights * rest).sum(axis=0)], axis=-1)

    def prior(self, mean: Array) -> dist.Distribution:
        """Conjugate prior by feature: exponential with the mean of the counts, or uniform."""
        if self.name == "count":
            return dist.Gamma(jnp.ones_like(mean), 1.0 / mean)
        ones = jnp.ones((len(self.columns), self.levels or 2))
        return (
            dist.Dirichlet(ones) if self.name == "category" else dist.Beta(ones[:, 0], ones[:, 1])
        )

    def posterior(self, statistics: Array, mean: Array) -> dist.Distribution:
        """Posterior by feature given statistics."""
        if self.name == "category":
            return dist.Dirichlet(1.0 + statistics, validate_args=False)
        first, second = statistics[..., 0], statistics[..., 1]
        if self.name == "count":
            return dist.Gamma(1.0 + first, 1.0 / mean + second, validate_args=False)
        return dist.Beta(1.0 + first, 1.0 + second, validate_args=False)

    def mode(self, found: dist.Distribution, extra: float) -> Array:
        """Mode; `extra` is added to numbers of events, to account for a message's Fisher information."""
        if isinstance(found, dist.Gamma):
            return jnp.maximum(found.concentration - 1.0 + extra, _LEAST) / found.rate
        if isinstance(found, dist.Beta):
            ends = jnp.stack([found.concentration1, found.concentration0])
            counts = jnp.maximum(ends - 1.0 + extra, _LEAST)
            return counts[0] / counts.sum(axis=0)
        counts = jnp.maximum(found.concentration - 1.0 + extra, _LEAST)
        return counts / counts.sum(axis=-1, keepdims=True)

    def length(self, params: Array, mean: Array) -> Array:
        r"""Length of parameters in nats, :math:`-\log p + \tfrac12 \log |I| + \tfrac r2 (1 - \log 12)`.

        :math:`|I|` is :math:`1 / \lambda` of a count, :math:`\prod_j p_j^{-1}` of a category, and
        :math:`m / p (1 - p)` of m + 1 ordered levels.
        """
        held = jnp.maximum(params, _LEAST)
        if self.name == "count":
            information = -jnp.log(held)
        elif self.name == "category":
            information = -jnp.log(held).sum(axis=-1)
        else:
            rest = jnp.maximum(1.0 - params, _LEAST)
            information = np.log(self.levels - 1) - jnp.log(held) - jnp.log(rest)
        constant = 0.5 * self.num_parameters * (1.0 - np.log(12.0))
        return constant + 0.5 * information - self.prior(mean).log_prob(held)

    def shortfall(self, params: Array, mean: Array, number: Array) -> Array:
        r"""Nats by which `length`, with its precision, is below the minimum length of n values.

        A message that states parameters is no shorter than one that averages over their prior,

        .. math:: \log p(x \mid \hat\theta) - \log \int p(x \mid \theta)\, p(\theta)\, d\theta,

        which is evaluated at counts whose shares are the parameters. If there are few values for
        the number of levels, or counts are rare, the expansion behind `length` is below this
        minimum: cells of parameters would be wider than their prior. Then the precision has a price
        as well, half a logarithm of n per parameter, which is that of BIC.

        Parameters
        ----------
        params : Array, shape (..., num_features, ...)
        mean : Array, shape (num_features,)
        number : Array, shape (..., num_features)
            n for each density.
        """
        if self.name == "count":
            events, rate = number * params, 1.0 / mean
            fitted = xlogy(events, params) - events
            averaged = jnp.log(rate) + gammaln(events + 1.0)
            averaged = averaged - (events + 1.0) * jnp.log(number + rate)
        else:
            shares, trials = params, number
            if self.name == "ordered":
                shares = jnp.stack([params, 1.0 - params], axis=-1)
                trials = number * (self.levels - 1)
            events, levels = trials[..., None] * shares, shares.shape[-1]
            fitted = xlogy(events, shares).sum(axis=-1)
            averaged = (
                gammaln(events + 1.0).sum(axis=-1)
                + gammaln(levels + 0.0)
                - gammaln(trials + levels)
            )
        precision = 0.5 * self.num_parameters * jnp.log(jnp.maximum(number, 1.0))
        length = self.length(params, mean)
        return jnp.maximum(jnp.maximum(fitted - averaged - precision, 0.0) - length, 0.0)

    def draw(self, key: Array, params: Array) -> Array:
        """Draw values of all features."""
        if self.name == "count":
            return dist.Poisson(params).sample(key) + 0.0
        if self.name == "ordered":
            return dist.Binomial(self.levels - 1, params).sample(key) + 0.0
        return dist.Categorical(params).sample(key) + 0.0

    def moments(self, params: Any) -> tuple[Any, Any]:
        """Mean and variance of values; NaN for categories."""
        if self.name == "category":
            nothing = np.full(params.shape[:-1], np.nan)
            return nothing, nothing
        if self.name == "count":
            return params, params
        most = self.levels - 1
        return most * params, most * params * (1.0 - params)

    def starts(self, values: Array, overall: Array) -> Array:
        """Parameters half-way between single values (..., num_features) and those of all data."""
        if self.name == "category":
            return (self._hot(values) + overall) / 2.0
        scale = 1.0 if self.name == "count" else self.levels - 1.0
        return (values / scale + overall) / 2.0

    def check(self, name: str, x: np.ndarray) -> None:
        """Refuse values that are not counts or codes of levels.

        Raises
        ------
        ValueError
            If there are such values; the message names the column.
        """
        for number, column in enumerate(self.columns):
            own = x[:, column][~np.isnan(x[:, column])]
            if self._is_named(number):
                if (said := self._unseen_in(number, name, x)) is not None:
                    raise ValueError(said)
                continue
            wrong = (own < 0) | (own != np.round(own))
            if self.levels:
                wrong |= own >= self.levels
            if wrong.any():
                wanted = (
                    f"codes 0 to {self.levels - 1}" if self.levels else "counts, integers from zero"
                )
                raise ValueError(
                    f"{name} has the value {own[wrong][0]:g} in column {column_name(column)}, whose kind is "
                    f"{self}; its values must be {wanted}"
                )

    def _is_named(self, number: int) -> bool:
        """Whether the levels of a column have named values rather than codes."""
        return bool(self.values) and self.values[number] != tuple(range(self.levels))

    def unseen(self, name: str, x: np.ndarray) -> str | None:
        """Say which value of a categorical column is not a category; None if there is no such value."""
        found = (self._unseen_in(number, name, x) for number in range(len(self.values)))
        return next((said for said in found if said is not None), None)

    def _unseen_in(self, number: int, name: str, x: np.ndarray) -> str | None:
        column, levels = self.columns[number], np.array(self.values[number])
        own = x[:, column][~np.isnan(x[:, column])]
        strange = own[np.abs(own[:, None] - levels).min(axis=1) > self._tolerance[number]]
        if not len(strange):
            return None
        return (
            f"{name} has the value {strange[0]:g} in column {column_name(column)}, a category of the values "
            f"{', '.join(f'{level:g}' for level in levels)}; no other has been seen, and it is as "
            "good as impossible in every cluster: pass NaN, or name all values in kinds="
        )

    def __str__(self) -> str:
        return repr(self.name if not self.levels else f"{self.name}:{self.levels}")


class Columns(NamedTuple):
    """Which columns of a table have which kind of density."""

    normal: tuple[int, ...]
    kinds: tuple[Kind, ...]
    size: int

    @classmethod
    def of(cls, kinds: Sequence[str], num_features: int | None) -> Columns:
        """Read a kind for each column: "normal", "count", "category:3", "category:-1,1" or "ordered:5".

        Raises
        ------
        TypeError, ValueError
            If a kind is unknown, or the numbers of kinds and columns differ.
        """
        is_one = isinstance(kinds, str) or not np.iterable(kinds)
        if is_one or not all(isinstance(one, str) for one in kinds):
            raise TypeError(
                f"kinds = {shown(kinds)}; pass 'normal', or a sequence of text, one for each column"
            )
        if num_features is not None and len(kinds) != num_features:
            raise ValueError(
                f"kinds has {len(kinds)} entries, and x has {num_features} columns; pass one for each"
            )
        found: dict[tuple[str, int], dict[int, tuple[float, ...]]] = {}
        for column, kind in enumerate(kinds):
            read = re.fullmatch(r"(normal|count)|(category|ordered):(\d+)", kind)
            levels = int(read[3] or 0) if read else 1
            values = _values(kind) if read is None else tuple(map(float, range(levels)))
            if values and read is None:
                found.setdefault(("category", len(values)), {})[column] = values
                continue
            if read is None or levels == 1 or (read[2] and levels < 2):
                raise ValueError(
                    f"kinds[{column}] = {shown(kind)}; expected 'normal', 'count', 'category:C' or "
                    "'ordered:C', with at least two levels C, or the values of a category, 'category:-1,1'"
                )
            found.setdefault((read[1] or read[2], levels), {})[column] = values
        normal = tuple(found.pop(("normal", 0), ()))
        by_kind = tuple(
            Kind(*kind, tuple(own), tuple(own.values()) if kind[0] == "category" else ())
            for kind, own in found.items()
        )
        return cls(normal, by_kind, len(kinds))

    @property
    def num_parameters(self) -> np.ndarray:
        """Free parameters of the density of each feature."""
        number = np.full(self.size, 2)
        for kind in self.kinds:
            number[list(kind.columns)] = kind.num_parameters
        return number

    def joined(self, normal: Array, parts: Sequence[Array]) -> Array:
        """Combine values of normal features and of each kind (last axis) in the order of the table."""
        order = np.concatenate([self.normal, *(kind.columns for kind in self.kinds)]).astype(int)
        return jnp.concatenate([normal, *parts], axis=-1)[..., np.argsort(order)]


def _values(kind: str) -> tuple[float, ...]:
    """The distinct values in a kind "category:a,b"; empty for other kinds."""
    head, _, listed = kind.partition(":")
    try:
        found = tuple(float(value) for value in listed.split(","))
    except ValueError:
        return ()
    is_sound = head == "category" and len(set(found)) == len(found) > 1 and np.isfinite(found).all()
    return found if is_sound else ()
