"""Curves of clusters with bands, and outcomes predicted of subjects whose label is in doubt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jax.core import Tracer
from numpy.typing import NDArray

from sidebayes.diagnostics.tree import pooled_draws
from sidebayes.guides.engines.problem.density import abstract_trace, finite_mixtures
from sidebayes.models.blocks.side_information.partial_labels import Groups

from ..runs import checks
from ..runs.run import Run
from ..runs.stored import names_of_columns
from .mixtures_of_normals import mixture_bands
from .predictions import check_new, known_groups
from .predictive import fill_tables, outcomes
from .uncertainty import check_probability, normal_interval

__all__ = ["CurvesOfFit"]

_MOST_PARTS = 2000
"""Normal parts, draws by clusters, of a mixture whose quantiles are found."""


class CurvesOfFit:
    """What a `Fit` of a mixture is asked whose components depend on the row."""

    def curves(self: Any, *, probability: float = 0.9, **new: Any) -> pd.DataFrame:
        """Curve of every cluster at new rows, with bands.

        Parameters
        ----------
        probability : float
            Of the central intervals.
        **new
            Data of the new rows by name of the argument, such as ``inputs=grid``; outcomes are left out,
            and so may groups be.

        Returns
        -------
        DataFrame
            A row for each new row, cluster and output: ``row``, ``cluster``, ``output``, by name where the
            columns of the data have names; ``mean`` of the
            curve and ``sd`` of what is not known of it, with ``lower`` and ``upper``; ``sd_outcome`` of a
            new outcome about the mean, noise included. Intervals are those of a normal distribution.
            After coordinate ascent means are those of the factor, without error of its draws.

        Raises
        ------
        ValueError
            If the model observes no one mixture whose components have means and variances.
        """
        check_probability(probability)
        mean, doubt, variance = self._components(self._new_rows(new), self._centred_draws)
        found = mean.mean(axis=0)
        sd = np.sqrt(mean.var(axis=0) + doubt.mean(axis=0))
        total = np.sqrt(mean.var(axis=0) + variance.mean(axis=0))
        low, high = normal_interval(found, sd, probability)
        row, cluster, output = (one.ravel() for one in np.indices(found.shape))
        return pd.DataFrame(
            {
                "row": row,
                "cluster": cluster,
                "output": self._output_names(output),
                "mean": found.ravel(),
                "sd": sd.ravel(),
                "lower": low.ravel(),
                "upper": high.ravel(),
                "sd_outcome": total.ravel(),
            }
        )

    def forecast(
        self: Any,
        seen: Mapping[str, Any] | None = None,
        *,
        probability: float = 0.9,
        **new: Any,
    ) -> pd.DataFrame:
        r"""Predict outcomes of new rows, of subjects that were fitted or are known by some of their rows.

        .. math:: p(y_* \mid x_*, \text{rows of } s) = \sum_k P(z_s = k \mid \text{rows of } s)\,
                  p(y_* \mid x_*, k),

        averaged over draws of the parameters. Labels of subjects that were fitted are given their fitted
        rows and links; those of others their `seen` rows, or the weights of the clusters.

        Parameters
        ----------
        seen : mapping of str to array_like, optional
            Rows that are known of subjects which were not fitted, outcomes among them, by name of the
            argument.
        probability : float
            Of the central intervals.
        **new
            Data of the new rows by name of the argument, ``inputs=..., subjects=...``.

        Returns
        -------
        DataFrame
            A row for each new row and output: ``row``, ``output``, ``mean``, ``sd``, ``lower`` and
            ``upper`` of the mixture, and ``known``: whether the label was given any rows.

        Raises
        ------
        TypeError, ValueError
            For bad input, or `seen` rows of subjects that were fitted.
        """
        check_probability(probability)
        run = self._new_rows(new)
        draws = pooled_draws(self.tree)
        keep = max(_MOST_PARTS // self._num_clusters, 1)
        number = len(next(iter(draws.values())))
        chosen = np.unique(np.linspace(0, number - 1, min(keep, number)).astype(int))
        draws = {name: values[chosen] for name, values in draws.items()}
        share, known = self._shares(run, seen, draws)
        mean, _, variance = self._components(run, draws)
        parts = (-1, *mean.shape[1:2], mean.shape[3])
        means, sds = (np.moveaxis(v, 2, 1).reshape(parts) for v in (mean, np.sqrt(variance)))
        weight = np.moveaxis(share, 2, 1).reshape(parts[:2]) / len(chosen)
        flat = means.reshape(len(means), -1), sds.reshape(len(sds), -1)
        weights = np.repeat(weight, mean.shape[3], axis=1)
        lower, upper = mixture_bands(*flat, weights, probability)
        middle = (weights * flat[0]).sum(axis=0)
        spread = np.sqrt((weights * (flat[1] ** 2 + (flat[0] - middle) ** 2)).sum(axis=0))
        row, output = (one.ravel() for one in np.indices(mean.shape[1::2]))
        table = {"row": row, "output": self._output_names(output), "mean": middle, "sd": spread}
        return pd.DataFrame(table | {"lower": lower, "upper": upper, "known": known[row]})

    def _output_names(self: Any, output: NDArray) -> NDArray:
        """Names of outputs, their numbers where the data have no names."""
        with self.run.precision:
            tables = filter(None, outcomes(self.run).values())
        names = next(filter(None, (names_of_columns(self.run, one) for one in tables)), None)
        return output if names is None else np.asarray(names, dtype=object)[output]

    @property
    def _input_of_curves(self: Any) -> str | None:
        """Argument that holds the one input of curves; None for other models, and for several inputs."""
        if self.run.model is None:
            return None
        with self.run.precision:
            seen = set(outcomes(self.run).values())
        inputs = getattr(self._density, "inputs", None)
        if getattr(inputs, "shape", (0, 0))[1] != 1:
            return None
        tables = (role.name for role in self.run.signature.of_kind("table") if role.required)
        return next((name for name in tables if name not in seen), None)

    @property
    def _density(self: Any) -> Any:
        """Components of the one mixture that is observed, None where there is no one."""
        with self.run.precision:
            sources = finite_mixtures(abstract_trace(self.run.problem)).values()
        own = [fn.components for fn, _ in sources]
        return own[0] if len(own) == 1 else None

    def _plot_curves(self: Any) -> Any:
        from sidebayes.diagnostics.pictures.curves import plot_curves

        along = self._input_of_curves
        values = self.run.data[along]
        inputs = values.reshape(-1)
        grid = np.linspace(inputs.min(), inputs.max(), 120)
        with self.run.precision:
            site = next(iter(filter(None, outcomes(self.run).values())))
        prob = self.responsibilities()
        groups = next((v for v in self.run.data.values() if isinstance(v, Groups)), None)
        prob = prob if groups is None else prob[groups.codes]
        curves = self.curves(**{along: grid.reshape(-1, *values.shape[1:])})
        y, observed = self.run.data[site], getattr(self._density, "observed", None)
        if observed is not None and not isinstance(observed, Tracer):
            y = np.where(np.asarray(observed) > 0, y, np.nan)  # which is not drawn
        return plot_curves(inputs, y, prob, grid, curves, along)

    @property
    def _num_clusters(self: Any) -> int:
        self._need_labels("clusters")
        return self.tree["responsibilities"].sizes["clusters"]

    def _new_rows(self: Any, new: Mapping[str, Any]) -> Run:
        """The run at new rows, whose outcomes are not known."""
        self._need_labels("curves of clusters")
        given = check_new(self.run, (), new, ("links", "table", "groups"))
        with self.run.precision:
            tables = set(filter(None, outcomes(self.run).values()))
        if tables & given.keys():
            raise TypeError(
                f"{sorted(tables & given.keys())} are outcomes, which are predicted; leave them out, or "
                "pass what is known of new subjects as seen={...}"
            )
        sizes = checks.check_dims(self.run.signature, given)
        filled = fill_tables(self.run.with_data(given), sizes, self.run.data)
        return self.run.with_data(filled)

    @property
    def _centred_draws(self: Any) -> dict[str, NDArray]:
        """Matched draws, moved to the mean of their factor where the engine knows it."""
        draws, plain = self._draws.pooled, pooled_draws(self.tree)
        info = self.tree["fit_info"]
        for name, values in draws.items():
            exact = info.get(f"factor_mean_{name}")
            if exact is not None and np.array_equal(values, plain[name]):  # none was renumbered
                draws[name] = values - values.mean(axis=0) + exact.to_numpy()
        return draws

    def _components(
        self: Any, run: Run, draws: Mapping[str, NDArray]
    ) -> tuple[NDArray, NDArray, NDArray]:
        """Means, doubt of these, and variances; each of shape (draws, rows, clusters, outputs)."""

        def moments(trace: dict, layout: Any, owners: dict) -> Any:
            ((fn, _),) = finite_mixtures(trace).values()
            rows = fn.event_shape[0]
            shape = (rows, fn.num_clusters, -1)
            density = fn.components
            mean = jnp.broadcast_to(density.mean, (rows, fn.num_clusters, *fn.event_shape[1:]))
            doubt = jnp.broadcast_to(getattr(density, "doubt", 0.0), mean.shape)
            variance = jnp.broadcast_to(density.variance, mean.shape)
            return jnp.stack([one.reshape(shape) for one in (mean, doubt, variance)])

        found = self._over_draws(moments, run, draws)
        return found[:, 0], found[:, 1], found[:, 2]

    def _shares(
        self: Any, run: Run, seen: Mapping[str, Any] | None, draws: Mapping[str, NDArray]
    ) -> tuple[NDArray, NDArray[np.bool_]]:
        """Label probabilities of new rows, shape (draws, rows, clusters), and whether rows told them."""

        def shares(trace: dict, layout: Any, owners: dict) -> Any:
            ((fn, value),) = finite_mixtures(trace).values()
            return fn.responsibilities(value)

        def weights(trace: dict, layout: Any, owners: dict) -> Any:
            ((fn, _),) = finite_mixtures(trace).values()
            return jax.nn.softmax(fn.labels.log_weights)

        prior = self._over_draws(weights, self.run, draws)[:, None]
        groups = next((r.name for r in run.signature.of_kind("groups") if r.name in run.data), None)
        rows = len(next(v for v in run.data.values() if isinstance(v, np.ndarray)))
        if groups is None:
            if seen is not None:
                raise TypeError("seen rows are of subjects, and the new rows name none")
            shape = (len(prior), rows, prior.shape[2])
            return np.broadcast_to(prior, shape), np.zeros(rows, bool)
        new = run.data[groups]
        share = np.repeat(prior, new.num_groups, axis=1)
        codes = known_groups(self.run, run.data).get(groups, np.full(new.num_groups, -1))
        fitted = codes >= 0
        if fitted.any():
            share[:, fitted] = self._over_draws(shares, self.run, draws)[:, codes[fitted]]
        told = fitted.copy()
        if seen is not None:
            data = check_new(self.run, (), seen)
            if groups not in data:
                raise TypeError(f"seen lacks {groups}: say of whom its rows are")
            again = known_groups(self.run, data).get(groups, np.full(1, -1)) >= 0
            if again.any():
                name = data[groups].names[np.argmax(again)]
                raise ValueError(
                    f"seen has rows of {name!r}, which was fitted; pass rows of other {groups}, or fit again"
                )
            place = data[groups].codes_of(new.names)
            found = self._over_draws(shares, self.run.with_data(data), draws)
            share[:, place >= 0] = found[:, place[place >= 0]]
            told |= place >= 0
        return share[:, new.codes], told[np.asarray(new.codes)]
