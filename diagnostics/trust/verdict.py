"""Verdict on a fit, by facts about its run."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from sidebayes.guides.engines.modes import starts_that_reached
from sidebayes.models.blocks.components.few_points import MANY
from sidebayes.models.blocks.side_information.partial_labels import PartialLabels

from ..fitted import Fitted, suits
from ..sites import is_label_dim, is_ordered, not_finite, point_sites, role_of
from ..symmetry.invariants import chains_stay_apart, effective_draws, frozen_sites

__all__ = ["num_starts_at_best", "verdict"]

_NEAR = 0.01
"""Difference in log joint density below which two runs count as having reached the same mode."""

_STILL_RISING = 1e-6
"""Last gain of a climb, relative to its objective, above which it counts as unfinished."""

_CLEAR_GAIN = 1.0
"""Last gain, in nats, above which a climb counts as unfinished however large the objective."""

_FLAT = 1e-5
"""Largest entry of a gradient, relative to the log joint density, that counts as zero."""

_TWINS = 1e-6
"""Difference of parameters, relative to the largest of any cluster, below which two clusters are the same."""

_ALIKE = 1e-4
"""Difference of label probabilities below which all points have the same probabilities."""

_NO_POINT = 0.5
"""Sum of the probabilities of points below which a cluster counts as empty."""

_MANY = 50
"""Starts of which only one reached the best, from which on more of them are no advice."""

_FEWEST_DRAWS = 4
"""Minimum number of draws per chain for R-hat and ESS."""

_RHAT, _ESS_PER_CHAIN = 1.01, 100
"""Limits of Vehtari et al. (2021), Bayesian Anal. 16, 667-718."""


def verdict(fit: Fitted, *against: tuple[str, str] | None) -> tuple[str, str]:
    """How far to trust a fit: "good", "caution" or "bad", and why, in a sentence or two.

    Parameters
    ----------
    fit : Fit
    *against : (str, str) or None
        Level and sentence of further findings against the fit, such as known classes; see `sentence` of
        `known_classes`.
    """
    found = [_of_run(fit), *filter(None, against)]
    levels = ("good", "caution", "bad")
    level = max((one for one, _ in found), key=levels.index)
    return level, " ".join([found[0][1], *(f"{said}." for _, said in found[1:])])


def _of_run(fit: Fitted) -> tuple[str, str]:
    """Return level and sentences of a verdict by the run itself."""
    info = fit.tree["fit_info"].attrs
    message = info["status"].rstrip(".")
    noted = [*json.loads(info.get("remarks", "[]")), *_points(fit), *_undefined(fit)]
    if not info["converged"]:  # remarks come first, as they may say why; clusters may still fill
        return "bad", f"{'. '.join([*noted, message])}."
    noted += [*_empty(fit), *_lone(fit)]
    message = ". ".join([message, *noted])
    stats = fit.tree["sample_stats"]
    for judged in (_chains, _end, _twins, _arbitrary, _starts):
        if found := judged(fit):
            return found[0], f"{message}. {found[1]}"
    if "diverging" in stats and stats["diverging"].any():
        return "caution", f"{message}. See whether the answer stays."
    if noted:
        return "caution", f"{message}."
    if fit.approximate:
        return "caution", f"{message}. Labels are summed out approximately, by {fit.approximate}."
    return "good", f"{message}."


def num_starts_at_best(fit: Fitted) -> int:
    """Return the number of starts that came within 0.01 of the objective of the result.

    A run from given values had one start; a run from the end of another fit counts the starts of that fit.

    Parameters
    ----------
    fit : Fit
    """
    noted = fit.tree["fit_info"].attrs.get("starts_at_best")
    if noted is not None:
        return int(noted)
    history = np.asarray(fit.objective, float)
    return starts_that_reached(history, _best_path(fit).max(initial=-np.inf)) if history.size else 0


def _chains(fit: Fitted) -> tuple[str, str] | None:
    """Return a verdict by the draws, for engines that draw."""
    sizes = fit.tree["posterior"].sizes
    # a user's engine may return a point without an objective
    draws = not fit.tree["posterior"].attrs["point_estimate"] or fit.config.length == "num_samples"
    independent = getattr(fit.config, "independent_draws", False)
    is_sampler = draws and not np.size(fit.objective) and not independent
    if is_sampler and sizes["draw"] < _FEWEST_DRAWS:
        return "bad", (
            f"{sizes['draw']} draws per chain cannot be judged; draw some hundreds from each of "
            "several chains."
        )
    if is_sampler and (still := frozen_sites(fit.tree)):
        return "bad", (
            f"All draws of {' and '.join(still)} are the same, though the posterior of what is continuous "
            "has a spread: the sampler never moved there; look at its steps, or at what was kept of them."
        )
    if independent:  # autocorrelations of such draws are due to chance
        worth = effective_draws(fit.tree)
        if min(worth, sizes["chain"] * sizes["draw"]) >= _ESS_PER_CHAIN:
            return None
        of = f" of {worth:.0f} effective ones" * bool(np.isfinite(worth))
        return "caution", f"{sizes['draw']} draws{of} are few; raise num_draws."
    rhat, ess = fit.convergence["rhat"], fit.convergence["ess"]
    more = getattr(fit.config, "for_more", "run longer")
    if rhat > 1.05:
        renumbered = "responsibilities" in fit.tree and not is_ordered(fit.tree)
        whatever = ", whatever the numbering of the clusters" if renumbered else ""
        said = f"The chains disagree{whatever} (R-hat {rhat:.2f})"
        from_prior = getattr(fit.config, "starts_at_prior", False)  # whose runs are no chains
        if not from_prior and chains_stay_apart(fit.tree):
            other = "take SMC, which needs proper priors, or " * suits(fit.run, "smc")
            return "bad", (
                f"{said}, and each agrees with itself: they are in modes of their own, between which "
                "chains rarely cross whatever their length, so that the share of each mode is unknown; "
                f"{other}tighten the prior."
            )
        return "bad", f"{said}: they found different answers; {more}, or tighten the prior."
    if rhat > _RHAT or ess < _ESS_PER_CHAIN * sizes["chain"]:
        worst = f"R-hat {rhat:.3f}, ESS {ess:.0f}" if np.isfinite(rhat) else f"ESS {ess:.0f}"
        return "caution", f"Not yet enough draws ({worst}); {more}."
    if is_sampler and sizes["chain"] == 1:
        return "caution", (
            "One chain cannot show whether others would agree with it; run several (num_chains)."
        )
    return None


def _end(fit: Fitted) -> tuple[str, str] | None:
    """Return a verdict by the last steps of a climb."""
    if not fit.config.climbs:
        return None
    path = _best_path(fit)
    stats = fit.tree["sample_stats"]
    if "gradient" in stats:
        slope = float(stats["gradient"].max()) / (1 + abs(float(stats["lp"].max())))
        if slope <= _FLAT:
            return None  # a mode, whatever the number of steps
    if len(path) < 2:
        return "bad", "It made no step, so that there is no sign of a mode; lower tol."
    gain = path[-1] - path[-2]
    if gain > max(_NEAR, min(_CLEAR_GAIN, _STILL_RISING * (1 + abs(path[-1])))):
        return "caution", f"The objective still rose by {gain:.2g} in the last step; lower tol."
    return None


def _twins(fit: Fitted) -> tuple[str, str] | None:
    """Return a verdict on a mode with the same cluster twice, as where nothing distinguishes clusters yet."""
    point = fit.config.climbs and fit.tree["posterior"].attrs["point_estimate"]
    if not point or is_ordered(fit.tree):  # empty clusters are all alike there
        return None
    rows = []
    for site in fit.tree["posterior"].data_vars.values():
        axes = [axis for axis, dim in enumerate(site.dims) if is_label_dim(str(dim))]
        if len(axes) == 1 and role_of(site) != "mixing_weights":
            first = np.moveaxis(site.to_numpy(), axes[0], 0)
            row = first.reshape(len(first), -1)
            rows.append(row / np.maximum(np.abs(row).max(axis=0), np.finfo(float).tiny))
    if not rows or any(len(row) != len(rows[0]) for row in rows):
        return None
    table = np.concatenate(rows, axis=1)
    # equal clusters are neighbours along any direction
    order = np.argsort(table @ np.random.default_rng(0).normal(size=table.shape[1]))
    for one, two in pairwise(order):
        if np.abs(table[one] - table[two]).max(initial=0.0) <= _TWINS:
            return "caution", (
                f"Clusters {min(one, two)} and {max(one, two)} are the same: it stayed at a saddle, "
                "where nothing separates them, or there are fewer clusters; leave init out, or lower "
                "num_clusters."
            )
    return None


def _arbitrary(fit: Fitted) -> tuple[str, str] | None:
    """Return a verdict on a fit whose label probabilities are the same for all points, and so arbitrary."""
    if "responsibilities" not in fit.tree:
        return None
    prob = fit.tree["responsibilities"]["prob"]
    if float((prob.max("points") - prob.min("points")).max()) > _ALIKE:
        return None
    if prob.sizes["points"] == 1 or float(prob.max("clusters").min()) > 1 - _ALIKE:
        return None  # all points are in one cluster
    return "caution", (
        "All points have the same probabilities of labels, so that labels are arbitrary: nothing "
        "separates clusters at this mode. Raise the weights of links, or the prior variance of what "
        "separates clusters (variance of pairwise_gp)."
    )


def _points(fit: Fitted) -> list[str]:
    """Return a remark on sites with a single value in all draws, where others vary."""
    points = point_sites(fit.tree)
    if not points:
        return []
    names, are = ", ".join(points), "is a point" if len(points) == 1 else "are points"
    return [
        f"{names} {are}: the result says nothing about the uncertainty there, and that of all other sites "
        "is too small" + "; use NUTS for draws of every site" * suits(fit.run, "nuts")
    ]


def _undefined(fit: Fitted) -> list[str]:
    """Computed sites that are not finite in some draws, and so left out of what is judged.

    Blocks give theirs roles: a correlation with what does not vary has no value, which is no fault.
    """
    sites = fit.tree["posterior"]
    number = sites.sizes["chain"] * sites.sizes["draw"]
    return [
        f"{name} is NaN or infinite "
        + (f"in {bad} of {number} draws" if number > 1 else "at this point")
        + ", and is left out of R-hat and of comparisons; look at what the model computes there"
        for name, bad in not_finite(fit.tree).items()
        if not role_of(sites.data_vars[name])
    ]


def _empty(fit: Fitted) -> list[str]:
    """Return a remark on empty clusters of a mode, where none was to be removed."""
    point = fit.tree["posterior"].attrs["point_estimate"] and not fit.config.prunes
    if not point or "responsibilities" not in fit.tree or is_ordered(fit.tree):
        return []
    found, fewer = fit.tree["responsibilities"], _fewer(fit)
    size = found["prob"].sum("points").max(["chain", "draw"]).to_numpy()
    labelled = np.bincount(found["labels"].to_numpy(), minlength=len(size))
    none = size < _NO_POINT
    if sample := _sample(fit):  # other rows of the table may be in them
        return _named(
            none | (labelled == 0),
            "holds",
            f"none of {sample}: see by fit.predict(scan) whether other rows are there; if not, {fewer}see "
            "whether another start or prior fills more",
        )
    return [
        *_named(
            none,
            "holds",
            f"no point: {fewer}see whether another start or prior fills more",
        ),
        *_named(
            ~none & (labelled == 0),
            "labels",
            f"no point, since every point has a more probable one: {fewer}see whether another start, or "
            "more links, fill more",
        ),
    ]


def _named(which: NDArray[np.bool_], does: str, what: str) -> list[str]:
    """Return a sentence about the clusters for which a condition holds; none where there are none."""
    names = [str(cluster) for cluster in np.flatnonzero(which)]
    if len(names) > 1:
        return [f"Clusters {', '.join(names)} {does.removesuffix('s')} {what}"]
    return [f"Cluster {name} {does} {what}" for name in names]


def _lone(fit: Fitted) -> list[str]:
    """Return a remark on clusters that hold a single point, where others hold many."""
    if "responsibilities" not in fit.tree:
        return []
    labels = fit.tree["responsibilities"]["labels"].to_numpy()
    clusters, first, sizes = np.unique(labels, return_index=True, return_counts=True)
    if len(labels) < MANY * len(clusters):
        return []
    names, sample = fit.tree["responsibilities"]["points"].to_numpy(), _sample(fit)
    number = "row" if sample else "number" if names.dtype.kind in "iu" else "named"
    others = ", and by fit.predict(scan) whether other rows are there" if sample else ""
    return [
        f"Cluster {cluster} holds {f'one of {sample}' if sample else f'a single point of {len(labels)}'}, "
        f"{number} {names[point]}: look whether that point is an outlier{others}; if it is not, "
        f"{_fewer(fit)}take a prior of the spreads that weighs more"
        for cluster, point, size in zip(clusters, first, sizes, strict=True)
        if size == 1
    ]


def _fewer(fit: Fitted) -> str:
    """Advise fewer clusters, unless the method has no such option, as where a source has them."""
    fixed = fit.run.options and "num_clusters" not in fit.run.options
    return "" if fixed else "take fewer clusters, or "


def _sample(fit: Fitted) -> str:
    """Name the rows that a fit keeps of a table on disk; empty where it keeps all."""
    whole = fit.tree.attrs.get("sidebayes_sample_of")
    kept = fit.tree["responsibilities"].sizes["points"]
    return f"the {kept} rows sampled from {whole}" if whole else ""


def _starts(fit: Fitted) -> tuple[str, str] | None:
    """Return a verdict by the number of starts that reached the mode."""
    history = fit.objective
    if num_starts_at_best(fit) != 1 or _is_one_cluster(fit):
        return None
    if len(history) > _MANY:
        return "caution", (
            f"No other of {len(history)} starts came near it: there are many modes, and more starts may find "
            "others. Choose among them by what is known of the data; several seeds show what they share."
        )
    if len(history) > 1:
        return "caution", "No other start came near it; add starts (num_restarts)."
    info = fit.tree["fit_info"].attrs
    elsewhere = info.get("began_at")
    several = getattr(fit.config, "num_restarts", 1) > 1
    if "starts_at_best" not in info and (several or "one_start" in info):
        return None  # all its starts are equal: the model's blocks declare a single start
    alone = fit.config.one_start
    if fit.config.climbs or fit.config.hard_labels or (alone and _has_unknown_labels(fit)):
        if more := info.get("more_starts"):
            return "caution", (
                f"One of the starts that {info['begun_by']} made led there, so that nothing shows whether "
                f"others lead higher; raise {more}."
            )
        if elsewhere and not alone:
            return "caution", (
                f"It began where a fit of {elsewhere} ended, to which one start led; begin at a fit to which "
                "several do (num_restarts)."
            )
        remedies = ["leave init out"] * ("starts_at_best" in info)
        remedies += ["add starts (num_restarts)"] * (not several)
        remedy = "try other seeds" if alone else " and ".join(remedies)
        return "caution", (
            f"It had one start, so that nothing shows whether others lead higher; {remedy}."
        )
    return None


def _has_unknown_labels(fit: Fitted) -> bool:
    """Return whether there are several clusters, and points whose class is not known."""
    if "responsibilities" not in fit.tree or fit.tree["responsibilities"].sizes["clusters"] < 2:
        return False
    known = [v.classes for v in fit.run.data.values() if isinstance(v, PartialLabels)]
    return not any((classes >= 0).all() for classes in known)


def _is_one_cluster(fit: Fitted) -> bool:
    """Return whether all clusters that may be removed were; all starts that end so have the same density."""
    weights = [
        site.to_numpy()
        for site in fit.tree["posterior"].data_vars.values()
        if role_of(site) == "mixing_weights"
    ]
    return (
        len(weights) == 1
        and (weights[0].shape[-1] > 1 or fit.config.prunes)
        and (weights[0] > 0).sum(axis=-1).max() == 1
    )


def _best_path(fit: Fitted) -> NDArray[np.float64]:
    """Return the objective by step of the start that led to the result, else of the one that got highest."""
    history = np.asarray(fit.objective, float)
    best = fit.tree["fit_info"].attrs.get("best_start")
    if best is None:
        best = np.argmax(np.where(np.isfinite(history), history, -np.inf).max(axis=1))
    return history[best][np.isfinite(history[best])]
