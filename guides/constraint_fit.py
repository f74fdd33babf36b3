"""Constraints on fitted labels: fits at falling temperatures, and the choice of the price of a constraint."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from inspect import signature
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike, NDArray
from sidebayes.models.blocks.label_inference.label_graph import as_label_graph
from sidebayes.models.blocks.side_information.links import Links
from sidebayes.models.constraint_fit import constraint_fit

from sidebayes.common.arrays import point_table
from sidebayes.common.columns import refuse_unknown_options
from sidebayes.common.fields import Count, NonNegative, OneOf, Positive, check_integer
from sidebayes.common.magnitudes import counted, shown
from sidebayes.common.warnings import warn_user

from .engines.base import KEEPS_NOTHING, Engine, EngineResult, Keeper, KeptEngine, Problem
from .engines.optimisers.ascent import Ascent, ascend
from .engines.optimisers.optimise import mode_result
from .engines.plumbing.clock import Clock
from .engines.plumbing.programs import compiled
from .engines.plumbing.progress import progress_bar
from .engines.problem.declared import approximation, observed_table
from .engines.problem.density import latent_supports, trace_model
from .engines.problem.options import with_option
from .engines.problem.units import model_of
from .engines.steps.starts import initial_values
from .fisher import natural_newton

__all__ = ["Continuation", "StrengthChoice", "choose_strength"]


@dataclass(frozen=True)
class Continuation(KeptEngine):
    """Maximum a posteriori estimation at falling temperatures, from several starts at once.

    This engine is for models with a `temperature`, such as `constraint_fit`: at a high temperature,
    divergences are smooth in the parameters. Every start climbs at each temperature in turn, from
    where it ended before, and finally at the temperature of the model itself. One start is a
    k-means partition; the others have means at random rows of the data. Warm starts often meet at
    one mode, which need not lead to the highest one. Therefore as many other starts climb at the
    model's own temperature alone, as those of `MAP` do, and the higher result is kept. The density
    is that of the constrained parameters.

    Parameters
    ----------
    method : {"lbfgs", "newton"}
        "newton" takes truncated Newton steps, preconditioned by the inverse Fisher information; for
        Gaussian clusters of "full" or "tied" covariance.
    num_restarts : int
        Number of warm starts, and also of the other starts.
    temperatures : tuple of float
        Temperatures of the stages before the last. Those that do not exceed the model's own temperature
        are skipped.
    rough : float
        Tolerance `tol` of these stages.
    tol : float
        See `MAP`.
    max_steps : int
        Maximum number of gradients in each stage.

    References
    ----------
    Law (2006), sections 5.4.1 and 5.4.2.4, whose runs have temperatures 4, 1 and 1/4 and fifteen
    starts.
    """

    method: Annotated[str, OneOf(sorted(_SOLVERS))] = "lbfgs"
    num_restarts: Count = 15
    temperatures: tuple[Positive, ...] = (4.0, 1.0)
    rough: NonNegative = 1e-5
    tol: NonNegative = 1e-7
    max_steps: Count = 1000
    name: ClassVar[str] = "continuation"
    gives_point: ClassVar[bool] = True
    climbs: ClassVar[bool] = True

    def run(
        self,
        problem: Problem,
        *,
        seed: int = 0,
        init: Mapping[str, Any] | None = None,
        progress: bool = True,
        keep: Keeper = KEEPS_NOTHING,
    ) -> EngineResult:
        """Fit; see `Engine.run`. An `init` is one start, at the model's own temperature alone.

        Raises
        ------
        TypeError
            If the model has no temperature, or no Gaussian sites for Newton steps.
        FitError
            If the log joint is not finite at any start.
        """
        own = _own_temperature(problem)
        sites = latent_supports(problem)
        if self.method == "newton" and set(sites) != {"weights", "mean", "covariance"}:
            raise TypeError(
                f"Continuation(method='newton') is for sites weights, mean and covariance; the model "
                f"has {sorted(sites)}: use method='lbfgs', or covariance='full' or 'tied'"
            )
        rough = max(self.rough, self.tol)
        warm = [] if init is not None else [(t, rough) for t in self.temperatures if t > own]
        clock = Clock()

        def climbed(number: int, temperature: float, tol: float, **begin: Any) -> Ascent:
            return ascend(
                with_option(problem, "temperature", temperature),
                title=f"Continuation at temperature {temperature:g}",
                seed=seed,
                num_restarts=self.num_restarts,
                tol=tol,
                max_steps=self.max_steps,
                jacobian=False,
                progress=progress,
                keep=keep.part(number),
                clock=clock,
                solver=_SOLVERS[self.method],
                **begin,
            )

        found = climbed(0, own, self.tol, init=init)
        if warm:
            starts = _starts(problem, seed, self.num_restarts)
            for number, stage in enumerate([*warm, (own, self.tol)], 1):
                last = climbed(number, *stage, init=None, starts=starts)
                starts = {name: last.ends[name] for name in sites}
            found = max(last, found, key=lambda one: (one.is_mode, one.value[one.best]))
        return mode_result(self.name, found, approximation(problem), clock)


_SOLVERS = {"lbfgs": None, "newton": natural_newton}


def _starts(problem: Problem, seed: int, number: int) -> dict[str, NDArray]:
    """Return one start at a k-means partition, and others with means at random rows of the data.

    Constraints matter most where they contradict the partition that k-means finds from every start.
    """
    starts = initial_values(problem, seed, number)
    data = observed_table(problem, "x")
    shapes = {name: value.shape[1:] for name, value in starts.items()}
    if data is None or shapes["mean"][-1] != data.shape[1]:
        return starts
    rng = np.random.default_rng(seed)
    size = math.prod(shapes["mean"]) // data.shape[1]
    rows = [rng.choice(len(data), size, replace=len(data) < size) for _ in range(number - 1)]
    mean = starts["mean"].copy()
    mean[1:] = data[np.reshape(rows, (-1, size)).astype(int)].reshape(-1, *shapes["mean"])
    return starts | {"mean": mean}


def _own_temperature(problem: Problem) -> float:
    model = model_of(problem)
    known = signature(model).parameters.get("temperature")
    if known is None:
        raise TypeError(
            f"{getattr(model, '__name__', 'the model')} has no parameter temperature, which "
            "Continuation lowers; use 'map'"
        )
    return float(problem.kwargs.get("temperature", known.default))


@dataclass(frozen=True, repr=False)
class StrengthChoice:
    """Result of `choose_strength`.

    Attributes
    ----------
    strength : float
        The price of a link, in nats.
    links : Links
        Links to fit at that price: all links, unless a fit to those not held out breaks fewer of all
        links; then these alone.
    strengths : ndarray, shape (num_tried,)
    held_out, trained : ndarray of int, shape (num_tried,)
        Numbers of links broken at each price, among those held out and those fitted.
    left_out : ndarray of int
        Numbers of the given links that `links` lacks; empty if it has all.
    """

    strength: float
    links: Links
    strengths: NDArray[np.float64]
    held_out: NDArray[np.int64]
    trained: NDArray[np.int64]
    left_out: NDArray[np.int64]

    def __repr__(self) -> str:
        """The price, how many of the links are to be fitted, and the prices tried with the links broken."""
        kept, lost = len(self.links), len(self.left_out)
        of_all = f"{kept} of {counted(kept + lost, 'link')}"
        tried = zip(self.strengths, self.held_out, self.trained, strict=True)
        lines = [f"{price:10.3g} {out:10d} {own:9d}" for price, out, own in tried]
        head = f"StrengthChoice({self.strength:.3g} nats per link, {of_all} to fit)"
        return "\n".join([head, f"{'price':>10} {'held out':>10} {'fitted':>9}", *lines])


def choose_strength(
    x: ArrayLike,
    links: Links,
    *,
    num_clusters: int,
    model: Callable[..., None] = constraint_fit,
    engine: Continuation | None = None,
    patience: int = 4,
    seed: int = 0,
    progress: bool = True,
    **options: Any,
) -> StrengthChoice:
    r"""Choose the lowest price of a link that breaks hardly more held-out links than the best price.

    Prices rise from 0.1 by factors of :math:`\sqrt{10}` until the best one has not been improved on for
    `patience` steps. The best price breaks the fewest held-out links; ties go to the price that breaks
    fewer of the fitted links, then to the lower price. The thesis takes the best price. Where many links
    are wrong, this is often a very high one that breaks one or two links fewer by chance and ruins the
    clusters. The lowest price is therefore taken that breaks at most one standard error more (Breiman
    et al. 1984, section 3.4.3). The standard error is that of the difference: the square root of the
    number of held-out links that one of the two prices breaks and the other keeps.

    Prices up to one nat per point that are too low to change any link do not count as steps.
    (They do in the thesis, whose path can then end too early.) Half of the links are held out. With
    fewer than ``6 * num_clusters`` links, three per cluster are fitted and three per cluster held out,
    and the two sets overlap; with fewer than ``3 * num_clusters`` all links serve as both. All links
    are fitted once more at the chosen price. ``choice.links`` has them all, unless this breaks more of
    all links than the fit without those held out did; these are then left out, with a warning. For the
    solution of the thesis fit ``choice.links`` with the same engine, options and seed.

    Parameters
    ----------
    x : array_like, shape (num_points, num_features)
    links : Links
        Their weights are not used.
    num_clusters : int
        At least two: with one cluster the same links are broken at every price.
    model : callable
        A model with constraints, such as `constraint_fit`.
    engine : Continuation, optional
    patience : int
        Number of prices without improvement after which the search ends; 4 in the thesis.
    seed : int
        Seed of the split and of the starts.
    progress : bool
    **options
        Options of the model, without `strength`, which is chosen.

    Warns
    -----
    SideBayesWarning
        If links are too few to hold any out, if all prices break equally many, so that the lowest is
        taken, or if ``choice.links`` lacks those held out.

    Raises
    ------
    TypeError, ValueError
        If there are no links, or an argument is out of range.

    References
    ----------
    Law (2006), section 5.6.2.2. Breiman, Friedman, Olshen and Stone (1984), *Classification and
    Regression Trees*, Wadsworth.
    """
    if not isinstance(links, Links):
        raise TypeError(f"links is a {type(links).__name__}; pass sidebayes.Links")
    if not len(links):
        raise ValueError("links is empty; there is no price to choose without any")
    points = point_table("x", x)
    num_clusters = check_integer("num_clusters", num_clusters, 2, len(points) + 1)
    patience, seed = check_integer("patience", patience), check_integer("seed", seed, 0, 2**63)
    engine = Continuation() if engine is None else engine
    if not isinstance(engine, Engine):
        raise TypeError(f"engine is a {type(engine).__name__}; pass a Continuation")
    if not callable(model):
        raise TypeError(f"model = {shown(model)}; pass a model with constraints, a function")
    if "strength" in options:
        raise TypeError("strength cannot be given: choose_strength chooses it")
    known = signature(model).parameters
    if not any(one.kind is one.VAR_KEYWORD for one in known.values()):
        own = [name for name in [*known][2:] if name != "strength"]  # after x and links
        refuse_unknown_options("choose_strength", options, own)
    options = {"num_clusters": num_clusters} | options
    fitted, held_out = _split(len(links), num_clusters, seed)
    if len(links) == len(held_out):
        warn_user(
            f"links has {counted(len(links), 'link')}, fewer than three for each of {num_clusters} "
            "clusters, so that none is held out: the price is the lowest at which these links are kept, and "
            "says nothing about others"
        )
    held_in = np.isin(np.arange(len(links)), fitted)
    tried: list[tuple[int, int, float]] = []
    found: list[NDArray] = []
    best = 0
    with jax.enable_x64(True), progress_bar("prices", shown=progress) as advance:
        data = jnp.asarray(points)
        graph = as_label_graph(links, len(data)).untied()

        def broken_at(prices: NDArray[np.float64]) -> NDArray[np.bool_]:
            """Return whether each link is broken; a link without a price has no effect."""
            priced = replace(graph, pair_weights=np.where(links.same, prices, -prices))
            problem = Problem(model, (data, priced), options)
            labels = _labels(problem, engine.run(problem, seed=seed, progress=False).params)
            return (labels[links.pairs[:, 0]] == labels[links.pairs[:, 1]]) != links.same

        idle = 0  # index of the last price that is too low for any effect
        while len(tried) <= max(best, idle) + patience:
            strength = 0.1 * 10 ** (len(tried) / 2)
            found.append(broken_at(np.where(held_in, strength, 0.0)))
            tried.append((found[-1][held_out].sum(), found[-1][held_in].sum(), strength))
            best = tried.index(min(tried))
            advance(1, f"{strength:.3g} nats, {tried[-1][0]} held-out links broken")
            if tried[-1][1] and strength < len(data) and np.array_equal(found[-1], found[0]):
                idle = len(tried) - 1
        chosen = _lowest(np.array(found[: best + 1]), held_out, held_in)
        strength = tried[chosen][2]
        if len({one[:2] for one in tried}) == 1:
            warn_user(
                f"all prices from {tried[0][2]:.3g} to {tried[-1][2]:.3g} nats break the same numbers of "
                f"links, {tried[0][0]} of {len(held_out)} held out and {tried[0][1]} of {len(fitted)} "
                "fitted, so that none is better than another; the lowest is taken"
            )
        of_all = broken_at(np.full(len(links), strength))
    # all links are given to be kept: they yield only to a fit that breaks fewer of them
    keep = held_in | (of_all.sum() <= found[chosen].sum())
    if not keep.all():
        warn_user(
            f"choice.links lacks the {counted((~keep).sum(), 'link')} that were held out: a fit to all "
            f"{len(links)} links at {strength:.3g} nats breaks {of_all.sum()} of them, and one without those "
            f"held out {found[chosen].sum()}; to keep all, fit links.with_strength(choice.strength)"
        )
    table = np.array(tried)
    broken = table[:, :2].astype(np.int64)
    return StrengthChoice(
        strength,
        links.take(keep).with_strength(strength),
        table[:, 2],
        broken[:, 0],
        broken[:, 1],
        np.flatnonzero(~keep),
    )


def _split(
    num_links: int, num_clusters: int, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the numbers of the links to fit, and of those to hold out."""
    least = 3 * num_clusters
    size = num_links if num_links < least else max(least, num_links // 2)
    order = np.random.default_rng(seed).permutation(num_links)
    return order[:size], order[num_links - size :]


def _lowest(
    broken: NDArray[np.bool_], held_out: NDArray[np.int64], held_in: NDArray[np.bool_]
) -> int:
    """Return the first row that breaks at most one standard error more held-out links than the last.

    Links that are fitted as well are no sample of others, and add nothing to the standard error.
    """
    differ = broken != broken[-1]
    excess = broken[:, held_out].sum(axis=1) - broken[-1, held_out].sum()
    error = np.sqrt(differ[:, held_out[~held_in[held_out]]].sum(axis=1))
    return int(np.argmax(excess <= error))


def _labels(problem: Problem, params: Mapping[str, NDArray]) -> NDArray[np.int64]:
    """Return the most probable label of each point under the mixture, without the constraints."""

    def build(bare: Problem) -> Callable:
        def go(params: dict[str, Array], args: tuple) -> Array:
            site = trace_model(bare, params, args)["x"]
            return site["fn"].mode(site["value"])

        return go

    values = {name: jnp.asarray(value) for name, value in params.items()}
    program, _ = compiled("labels", problem, None, build, values, problem.args)
    return np.asarray(program(values, problem.args))
