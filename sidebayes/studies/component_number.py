"""Choice of the number of components of a mixture: by BIC, by evidence, or to match another model."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import numpyro.distributions as dist
import pandas as pd

from sidebayes.guides.engines.base import Engine, FitError, SideBayesWarning
from sidebayes.guides.engines.plumbing.identity import is_known
from sidebayes.guides.engines.problem.density import abstract_trace, latent_sites
from sidebayes.models.blocks.block_facts import Improper
from sidebayes.models.blocks.side_information.partial_labels import TooFewClustersError

from ..api import fit
from ..common.copies import warn_of_copied_rows
from ..common.fields import check_seed
from ..common.magnitudes import counted, shown
from ..common.warnings import told_once
from ..results.fit import Fit
from ..results.scores.information import refuse_no_likelihood
from ..runs.arguments import read_run
from ..runs.run import Run
from ..runs.zoo import Card, can_draw, find_card, make_engine
from ..streams import keeps_all, scan_among
from ..tasks import Task, run_tasks
from .choice import NumberChoice, evidence_columns, read_numbers

__all__ = ["ComponentChoice", "select_components"]

_OF_FIT = frozenset(inspect.signature(fit).parameters)
"""Arguments that are not the model's."""


@dataclass(frozen=True, repr=False)
class ComponentChoice(NumberChoice):
    """Result of `select_components`.

    Attributes
    ----------
    fit : Fit
        The fit with the chosen number of components.
    path : DataFrame
        A row for every number of components tried: ``bic``; or ``log_evidence``, its ``standard_error``,
        and whether this ``evidence`` is an estimate or a lower bound; NaN for numbers without a fit; and
        whether it is the one ``chosen``.
    edge : str
        Why the choice may lie outside the numbers that were tried; empty where it lies between others.
    doubts : str
        Why another of these numbers may be the right one; empty if there is no reason.
    lost : dict of int to str
        Numbers without a fit, and why they have none: every start collapsed, or links or known clusters
        need more components.
    """

    @property
    def num_clusters(self) -> int:
        """Number of components chosen."""
        return self.number


@told_once()
def select_components(
    method: str | Callable[..., None],
    *data: Any,
    num_clusters: Sequence[int],
    criterion: Literal["bic", "evidence"] = "bic",
    beyond: Fit | None = None,
    engine: str | Engine | None = None,
    seed: int = 0,
    n_jobs: int | None = None,
    progress: bool = True,
    **arguments: Any,
) -> ComponentChoice:
    """Fit a mixture with several numbers of components, and choose one.

    Parameters
    ----------
    method : str or callable
        Card or model with an option ``num_clusters``. Prototypes of "pfgl" are grown for every number
        (`grow_prototypes`). "nfgl" has no likelihood: choose for "moe", and pass the fit to `fit_nfgl` as
        ``base``.
    *data
        Data as for `sidebayes.fit`.
    num_clusters : sequence of int
        Numbers to try, such as ``range(1, 7)``.
    criterion : {"bic", "evidence"}
        Minimise `Fit.bic` of a mode, or maximise `Fit.log_evidence` (for draws, that of
        `Fit.with_evidence`). The empirical prior depends on the number of clusters: give a
        `GaussianPrior` to compare numbers under one prior. Neither criterion suits "constraint_fit" and
        "constraint_projection", which are penalised. The ``doubts`` of the choice name the
        numbers that are as good: those whose BIC is less than 2 above the smallest, or whose log
        evidence is below the largest by less than 1, by less than two standard errors of the
        difference, or by less than 3 where its error is not known (Raftery 1995).
    beyond : Fit, optional
        A fit of another model to the same data, by its mode. Numbers are tried in rising order, and
        the first whose BIC exceeds that of this fit is chosen, which gives models of similar
        complexity. With ``engine=HardClasses()`` and a fit of "pfgl" this is MOE-hard-plus
        (Raghuram 2014, section 2.7.2).
    engine : str or engine, optional
        For BIC the default is the first engine of the card. For the evidence it is "gibbs" if the
        method has it, with "smc" for numbers whose draws give no evidence, for example because
        chains disagree; otherwise it is "smc".
    seed : int
    n_jobs : int, optional
        Number of fits to run in parallel; by default one, or as ``joblib.parallel_config`` sets it.
        The result is the same.
    progress : bool
    **arguments
        Arguments of `sidebayes.fit` or `grow_prototypes`, such as ``num_classes=3``.

    Returns
    -------
    ComponentChoice

    Raises
    ------
    TypeError, ValueError
        For bad input, or if no number has a BIC beyond that of `beyond`.
    FitError
        If every start collapses for all numbers.

    Examples
    --------
    >>> import sidebayes
    >>> iris = sidebayes.load_dataset("iris")
    >>> sidebayes.select_components("gmm", iris.x, num_clusters=range(1, 4)).num_clusters
    2
    """
    tried = read_numbers("num_clusters", num_clusters, "range(1, 7)")
    if not isinstance(criterion, str) or criterion not in ("bic", "evidence"):
        raise ValueError(f"criterion = {shown(criterion)}; expected 'bic' or 'evidence'")
    card = find_card(method) if isinstance(method, str) else None
    if card is not None and "composite likelihood" in card.tags:
        raise ValueError(
            f"{method} has a composite likelihood, and neither BIC nor evidence; choose for 'moe', and pass "
            "base=choice.fit to fit_nfgl"
        )
    grown = card is not None and bool(card.routine_path)
    by_evidence = criterion == "evidence"
    if by_evidence and (grown or beyond is not None):
        raise ValueError(
            "criterion='evidence' is of models given before the data; prototypes that are grown, and "
            "beyond=, need criterion='bic'"
        )
    if beyond is not None and not isinstance(beyond, Fit):
        raise TypeError(f"beyond is a {type(beyond).__name__}; pass a Fit")
    limit = None if beyond is None else beyond.bic
    run: Callable[..., Fit] = card.routine if card is not None and grown else partial(fit, method)
    engines: tuple[str | Engine | None, ...] = (engine,)
    if engine is None and by_evidence:
        suited = () if card is None else card.engines
        engines = tuple(name for name in ("gibbs", "smc") if name in suited) or ("smc",)
    given = {"seed": check_seed(seed)}
    try:
        inspect.signature(run).bind(
            *data, num_clusters=tried[0], engine=engines[0], **given, **arguments
        )
    except TypeError as error:
        raise TypeError(f"{method}: {error}; see sidebayes.grow_prototypes") from None
    if not by_evidence:
        _refuse_draws(engine, card)
        _refuse_sample(data, arguments)
    draws = can_draw(card)
    if not grown:
        greatest = {**arguments, "num_clusters": tried[-1]}
        asked = _run_of(method, data, greatest, None if by_evidence else engine)
        if isinstance(asked, Run):
            if not (by_evidence and draws):
                _refuse_without_bic(asked)
            for role in asked.signature.of_kind("table"):
                if (table := asked.data.get(role.name)) is not None:
                    warn_of_copied_rows(role.name, table)
    if by_evidence and not draws:
        raise ValueError(
            f"{method} has engines that end at a mode, and none that gives an evidence; choose by "
            "criterion='bic'"
        )
    one = partial(run, *data, progress=False, **given, **arguments)
    tasks = (Task(counted(number, "component"), number) for number in tried)
    fit_one = partial(_with_evidence, engines) if by_evidence else partial(_fitted, engine)
    found = run_tasks(
        fit_one,
        tasks,
        one,
        n_jobs=n_jobs,
        title="components",
        total=len(tried),
        progress=progress,
    )
    fits: dict[int, Fit] = {}
    rows: dict[int, dict[str, Any]] = {}
    lost: dict[int, FitError | TooFewClustersError] = {}
    for number, result in zip(tried, found, strict=False):
        if isinstance(result, FitError | TooFewClustersError):
            lost[number], rows[number] = result, {}
            continue
        fits[number], rows[number] = result, _score(result, by_evidence)
        if limit is not None and rows[number]["bic"] > limit:
            break
    found.close()  # greater numbers are not needed
    if not fits:
        last = lost[max(lost)]
        if isinstance(last, TooFewClustersError):
            raise last
        raise FitError(f"no number of components has a fit, the last one for: {last}", last.params)
    path = pd.DataFrame.from_dict(rows, orient="index").rename_axis("num_clusters")
    if limit is not None:
        chosen = tried[len(rows) - 1]
        if not path["bic"].iloc[-1] > limit:
            raise ValueError(
                f"num_clusters = up to {chosen}: no BIC exceeds that of beyond, {limit:.6g}, the last is "
                f"{path['bic'].iloc[-1]:.6g}; try greater numbers"
            )
    else:
        worth = path["log_evidence"] if by_evidence else -path["bic"]
        if worth.isna().all():
            raise FitError(
                "no number of components has an evidence: chains disagree, or their draws are too few; give "
                "engine='smc', or criterion='bic'"
            )
        chosen = list(rows)[int(np.nanargmax(worth.to_numpy()))]
    path = path.assign(chosen=path.index == chosen)
    argument = "num_clusters" if limit is None else None  # tried until one was beyond the limit
    fewer = {**arguments, "num_clusters": chosen - 1}
    is_least = chosen == min(fits) and isinstance(
        _run_of(method, data, fewer, engine), TooFewClustersError
    )
    why = {number: str(error) for number, error in lost.items()}
    return ComponentChoice.of(fits[chosen], path, argument=argument, lost=why, is_least=is_least)


def _refuse_without_bic(run: Run) -> None:
    """Refuse models whose density is no likelihood, or has factors that are none, before a fit."""
    with run.precision:
        refuse_no_likelihood(run)
        trace = abstract_trace(run.problem)
    factors = [name for name, site in trace.items() if isinstance(site.get("fn"), dist.Unit)]
    if not factors:
        return
    if not can_draw(run.card):
        raise ValueError(
            f"{run.method} has the factor {factors[0]!r}, which is no likelihood, so that it has no BIC, and "
            "no engine that gives an evidence: no criterion chooses its number of components; give the "
            "number to sidebayes.fit"
        )
    itself = run.card is not None and "unknown number of clusters" in run.card.tags
    blocks = [(site.get("infer") or {}).get("block") for site in latent_sites(trace).values()]
    found = (block.improper() for block in blocks if isinstance(block, Improper))
    advice = next((": " + one for one in found if one), "")
    raise ValueError(
        f"{run.method} has the factor {factors[0]!r}, which is no likelihood, so that it has no BIC; "
        + "fit it once, since it finds the number up to num_clusters itself, or " * itself
        + f"choose by criterion='evidence'{advice}"
    )


def _refuse_draws(engine: str | Engine | None, card: Card | None) -> None:
    """Refuse an engine that draws before it does, where BIC is asked for; a user's may give a mode."""
    runner = make_engine(engine, card)
    if is_known(type(runner)) and not runner.gives_point:
        raise ValueError(
            f"engine {runner.name!r} gives draws, and criterion='bic' is of a mode; pass "
            "criterion='evidence', or an engine that ends at a mode, such as 'em' or 'map'"
        )


def _refuse_sample(data: tuple, arguments: Mapping[str, Any]) -> None:
    """Refuse a table on disk of which fits keep a sample, before the first of them."""
    table = scan_among(data, arguments)
    if table is not None and not keeps_all(table):
        raise ValueError(
            f"BIC needs all {len(table)} rows of the table on disk, and fits keep a sample of them; give "
            "criterion='evidence' and engine='svi', or compare fits by their log_prob of other rows"
        )


def _run_of(
    method: str | Callable[..., None],
    data: tuple,
    arguments: Mapping[str, Any],
    engine: str | Engine | None,
) -> Run | TooFewClustersError | None:
    """What would be fitted, or why links or known clusters rule it out, as far as this is easy to decide.

    None where the fit itself is to refuse the data, or reads them from disk.
    """
    own = {n: v for n, v in arguments.items() if n not in _OF_FIT}
    if scan_among(data, own) is not None:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SideBayesWarning)
            run = read_run(method, data, own, engine)
            run.problem  # noqa: B018  whose data it checks
    except TooFewClustersError as error:
        return error
    except (TypeError, ValueError):
        return None
    return run


def _fitted(
    engine: str | Engine | None, run: Callable[..., Fit], number: int
) -> Fit | FitError | TooFewClustersError:
    try:
        return run(num_clusters=number, engine=engine)
    except (FitError, TooFewClustersError) as error:
        return error


def _with_evidence(
    engines: Sequence[str | Engine | None], run: Callable[..., Fit], number: int
) -> Fit | FitError | TooFewClustersError:
    """Fit by the first of some engines that knows the evidence, or whose draws tell it; else by the last."""
    for engine in engines:
        found = _fitted(engine, run, number)
        if isinstance(found, Fit) and found.log_evidence is None and not found.config.gives_point:
            with suppress(ValueError, FitError):
                found = found.with_evidence()
        if isinstance(found, Fit) and found.log_evidence is not None:
            break
    return found


def _score(found: Fit, by_evidence: bool) -> dict[str, Any]:
    if not by_evidence:
        return {"bic": found.bic}
    evidence = found.log_evidence
    if evidence is None and not (found.config.gives_point or found.config.independent_draws):
        return evidence_columns(None)
    if evidence is None:
        raise ValueError(
            f"{found.engine} gives no evidence; use engine='smc' or 'nested', or criterion='bic'"
        )
    return evidence_columns(evidence)
