"""What a fit says of the classes of rows, which models learn beside their clusters."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sidebayes.diagnostics.tree import pooled_draws
from sidebayes.guides.engines.problem.density import abstract_trace, collapsed_sites
from sidebayes.models.blocks.side_information.partial_labels import PartialLabels

from .predictions import check_new, refuse_impossible

__all__ = ["Classes"]


class Classes:
    """What a `Fit` is asked about classes."""

    @property
    def has_classes(self: Any) -> bool:
        """Whether points have classes beside their labels."""
        with self.run.precision:
            sources = collapsed_sites(abstract_trace(self.run.problem)).values()
            return any(fn.num_classes is not None for fn, _ in sources)

    @property
    def class_names(self: Any) -> tuple[str | int, ...]:
        """Names of the classes in their order; numbers for those without a name."""
        with self.run.precision:
            sources = collapsed_sites(abstract_trace(self.run.problem)).values()
        number = max((fn.num_classes or 0 for fn, _ in sources), default=0)
        known = (v.names for v in self.run.data.values() if isinstance(v, PartialLabels))
        names = next(filter(None, known), ())
        return (*names, *range(len(names), number))

    def class_probabilities(self: Any, *data: Any, **named: Any) -> NDArray[np.float64]:
        """Probabilities of the classes of rows, averaged over draws.

        Classes are those that the data name: draws need no matching, whatever the numbering of
        clusters.

        Parameters
        ----------
        *data, **named
            New data in the roles of the model's arguments, such as ``x_new``; by default those that were
            fitted, with what is known of their classes.

        Returns
        -------
        ndarray, shape (num_rows, num_classes)

        Raises
        ------
        ValueError
            If the model has no classes, or no class is possible for a row.
        """
        if not self.has_classes:
            raise ValueError(
                f"{self.method} has no classes, only what it finds without names; fit.labels() are its "
                "clusters, if it has some. 'moe' learns classes from a few rows whose class is known"
            )

        def classes(trace: dict, layout: Any, owners: dict) -> Any:
            sources = collapsed_sites(trace).values()
            given = [(fn, value) for fn, value in sources if fn.num_classes is not None]
            return jnp.concatenate([fn.class_probabilities(value) for fn, value in given])

        is_new = any(value is not None for value in (*data, *named.values()))
        run = self.run.with_data(check_new(self.run, data, named)) if is_new else self.run
        prob = self._over_draws(classes, run, pooled_draws(self.tree)).mean(axis=0)
        return refuse_impossible(prob, "class")

    def classes(self: Any, *data: Any, **named: Any) -> pd.DataFrame:
        """Most probable class of each row, and its probability.

        Parameters are those of `class_probabilities`.

        Returns
        -------
        DataFrame
            Columns ``class``, its name where the known classes have names, and ``probability``, one row
            for each row of the data.
        """
        prob = self.class_probabilities(*data, **named)
        names = np.asarray(self.class_names, dtype=object)
        best = prob.argmax(axis=1)
        return pd.DataFrame({"class": names[best], "probability": prob.max(axis=1)}).infer_objects()
