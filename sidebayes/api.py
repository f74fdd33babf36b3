"""Fit, compare, load."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike

from sidebayes.diagnostics.comparison.compare import Comparison, compare_fits
from sidebayes.diagnostics.comparison.draws_elsewhere import draws_elsewhere
from sidebayes.diagnostics.elsewhere import is_draws, read_draws
from sidebayes.diagnostics.sites import computed_of
from sidebayes.guides.engines.base import Engine
from sidebayes.guides.engines.plumbing.checkpoint import check_checkpoint

from .common.fields import Range, check_number
from .common.files import as_path, is_damaged, is_sealed, is_swollen
from .results.fit import Fit
from .runs import checks, record
from .runs.arguments import check_dtype, read_run
from .runs.problems import shapes_of
from .runs.run import Run
from .runs.stored import identity_of, other_densities, stored_run
from .runs.zoo import find_card
from .streams import with_samples

if TYPE_CHECKING:
    from numpyro.infer import MCMC

__all__ = ["compare", "fit", "load"]

_HELD: dict[str, set[str]] = {
    "posterior": set(),
    "sample_stats": {"lp"},
    "log_likelihood": set(),
    "observed_data": set(),
    "constant_data": {"links", "link_weights", "feature_names"},
    "fit_info": {"objective"},
}
"""Groups and variables that the file of every fit has."""


def fit(
    method: str | Callable[..., None],
    *data: Any,
    engine: str | Engine | None = None,
    seed: int = 0,
    init: Mapping[str, Any] | Fit | None = None,
    dtype: str = "float64",
    truth: ArrayLike | None = None,
    feature_names: Sequence[str] | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: float = 60.0,
    progress: bool = True,
    **arguments: Any,
) -> Fit:
    """Fit a method, or your own NumPyro model, to data.

    Parameters
    ----------
    method : str or callable
        Name of a card (``sidebayes list``), or a NumPyro model. Its signature says which arguments are
        data, see `sidebayes.models.blocks.roles.signature_of`; without annotations the first one is
        a table of points by features, and one called ``links`` joins points.
    *data
        Data in the order of the model's arguments: arrays and data frames, `Links`, `Groups` or names
        of groups by row, `PartialLabels`. They may be passed by name as well. A table on disk
        (`sidebayes.scan`) is fitted by stochastic EM, or by coordinate ascent or SVI where `engine` says so.
    engine : str or engine, optional
        Name, such as "em", "laplace" or "nuts" (``sidebayes list`` shows them all), or a
        configuration such as ``EM(num_restarts=20)``. By default the first engine of the card,
        which also finds the mode from which samplers start.
    seed : int
        The same seed gives the same result on the same machine.
    init : mapping or Fit, optional
        Start from these values of the latent sites, or from another fit's.
    dtype : {"float64", "float32"}
    truth : array_like, shape (num_points,), optional
        Known classes, which are kept beside the fit for scoring and never used in it: names or whole
        numbers, with -1, NaN, None or blank text where the class is not known. Rows whose class the model
        is given do not count in scores.
    feature_names : sequence of str, optional
        Names of the columns of the first table that has columns; by default those of the data frame.
        Columns of new data are matched by name where they have names.
    checkpoint : path, optional
        File that keeps the state of the engine, so that the same call continues after an
        interruption.
    checkpoint_every : float
        Minimum number of seconds between two writes.
    progress : bool
        Show progress where there is a terminal.
    **arguments
        Data by name, and options of the model, such as ``num_clusters=3`` or ``covariance="tied"``.

    Returns
    -------
    Fit

    Raises
    ------
    TypeError, ValueError
        For bad input; the message names the argument and its value, and says what to do.
    FitError
        If the run fails.

    Examples
    --------
    >>> import sidebayes
    >>> data = sidebayes.load_dataset("iris")
    >>> links = sidebayes.simulate_links(data.labels, 60)
    >>> result = sidebayes.fit("ppc", data.x, links, num_clusters=3)
    >>> result.labels().shape
    (150,)
    """
    path = None if checkpoint is None else check_checkpoint(checkpoint)
    every = check_number("checkpoint_every", checkpoint_every, Range(least=0))
    if init is not None and not isinstance(init, Fit | Mapping):
        raise TypeError(
            f"init is a {type(init).__name__}; pass a mapping of site values, or another Fit"
        )
    data, arguments, engine, stream = with_samples(
        method, data, arguments, engine, seed=seed, progress=progress
    )
    if stream is not None and truth is not None:
        raise ValueError("truth is for rows in memory; score fit.predict(scan) in place of it")
    run = read_run(
        method,
        data,
        arguments,
        engine,
        seed=seed,
        dtype=dtype,
        truth=truth,
        feature_names=feature_names,
        checkpoint=path,
        checkpoint_every=every,
        stream=stream,
    )
    if stream is not None:
        run = replace(run, stream=stream)
        if len(stream.rows) < stream.num_rows:
            run = replace(run, sample_of=stream.num_rows, sample_rows=stream.rows)
    return Fit.of(run, init, progress=progress)


def compare(fits: Mapping[str, Fit | xr.DataTree | xr.Dataset | str | Path | MCMC]) -> Comparison:
    """Compare fits: what they found, how certain they are, and what they cost.

    Parameters
    ----------
    fits : mapping of str to Fit, or to draws made elsewhere
        Besides fits, these may be draws: what ArviZ reads from NumPyro, nutpie, PyMC or CmdStan (a
        DataTree or InferenceData of the same variables), NumPyro's `MCMC`, or the path of an ArviZ
        file. Entries that need the model are then blank; `Fit.from_draws` makes a full fit of such
        draws. The path of a file that `Fit.save` wrote stands for that fit.

    Returns
    -------
    Comparison
        Prints as text; ``.frame`` and ``.html()`` hold the same.

    Raises
    ------
    TypeError, ValueError
        If there is nothing to compare, something is neither a fit nor draws, or two have the same name.
    """
    if not isinstance(fits, Mapping):
        raise TypeError(f"fits is a {type(fits).__name__}; pass a mapping, {{'em': fit_1, ...}}")
    if not fits:
        raise ValueError("fits is empty; pass {name: fit, ...}")
    for name, one in fits.items():
        if not isinstance(one, Fit) and not is_draws(one):
            raise TypeError(
                f"fits[{name!r}] is a {type(one).__name__}; expected a Fit, or draws as ArviZ has them"
            )
    paths = {name: Path(one) for name, one in fits.items() if isinstance(one, str | os.PathLike)}
    saved = [name for name, path in paths.items() if path.is_file() and is_sealed(path)]
    fits = {**fits, **{name: load(paths[name]) for name in saved}}
    own = {name: one for name, one in fits.items() if isinstance(one, Fit)}
    computed = {name for fit in own.values() for name in computed_of(fit.tree)}
    trees = {
        name: read_draws(one, f"fits[{name!r}]", computed)
        for name, one in fits.items()
        if name not in own
    }
    first = next(iter(trees.items()), None)
    drawn = {name: draws_elsewhere(tree, own, first) for name, tree in trees.items()}
    return compare_fits({name: own.get(name) or drawn[name] for name in fits}, elsewhere=[*drawn])


def load(path: str | Path, model: Callable[..., None] | None = None, **options: Any) -> Fit:
    """Read a fit that `Fit.save` wrote.

    Parameters
    ----------
    path : path
    model : callable, optional
        Your own model, which predictions need; that of a card is found by its name.
    **options
        What a file cannot hold, passed again by name: an option that is a function, such as
        ``component=``, or ``engine=`` if the engine was your own. Without such an option the fit
        can be read, but everything that needs its model is refused.

    Raises
    ------
    ValueError
        If there is no such file, it is not a saved fit, or the model is not the one that was
        fitted: its sites differ, or its log densities at a draw in the file do.
    """
    tree = _read_tree(as_path(path))
    with _damage_named(path):
        name = tree.attrs["sidebayes_method"]
        stored, lost = record.parse(tree.attrs["sidebayes_options"])
        config, lost_engine = record.parse(tree.attrs["sidebayes_engine"])
        card = None if tree.attrs["sidebayes_own_model"] else find_card(name)
    surplus = sorted(options.keys() - lost.keys() - lost_engine.keys())
    if surplus:
        raise ValueError(
            f"load was given {surplus}; give only what the file does not hold, here "
            f"{sorted(lost | lost_engine)}"
        )
    lacking = {n: was for n, was in (lost | lost_engine).items() if n not in options}
    if lost_engine.keys() & lacking.keys() or (lacking and (model is not None or options)):
        raise ValueError(record.remedy(name, lacking, own_model=card is None and model is None))
    if card is not None and model not in (None, card.model):
        raise ValueError(f"the file holds a fit of the card {name!r}; leave model out")
    with _damage_named(path):
        fields = stored_run(
            tree,
            model=None if lacking else card.model if card else model,
            options=stored | {n: options[n] for n in lost if n in options},
            engine=config["engine"] if "engine" in config else options["engine"],
        )
        run = Run(**fields)
        check_dtype(run.dtype)
        _check_whole(tree, run)
        tree.attrs["sidebayes_identity"] = identity_of(tree, run)
    if run.model is not None and (model is not None or options):
        _check_sites(tree, run)
    return Fit(tree, run)


def _read_tree(path: Path) -> xr.DataTree:
    """Tree in a NetCDF file that holds a fit."""
    if path.is_dir():
        raise ValueError(f"{path} is a folder; give a file that Fit.save wrote")
    if not path.is_file():
        raise ValueError(f"there is no file {path}; give one that Fit.save wrote")
    if is_damaged(path):  # HDF5 may read on for ever, or crash
        raise ValueError(
            f"{path} is damaged: its checksum is not that of what it holds; fit or copy anew"
        )
    try:
        if is_swollen(path):
            raise ValueError("it declares arrays far larger than itself")
        with xr.open_datatree(path, engine="h5netcdf") as opened:
            tree = opened.load()
    except Exception as error:  # HDF5 and xarray have errors of many kinds
        raise ValueError(
            f"{path} is no NetCDF file, or is damaged ({_one_line(error)}); give one that Fit.save wrote"
        ) from error
    if "sidebayes_method" not in tree.attrs:
        raise ValueError(f"{path} is no sidebayes fit; give a file that Fit.save wrote")
    return tree


@contextmanager
def _damage_named(path: str | Path) -> Iterator[None]:
    """Name the file, whatever goes wrong with what it holds."""
    try:
        yield
    except Exception as error:  # whatever was changed or lost
        raise ValueError(
            f"{path} cannot be used ({_one_line(error)}); it may be damaged, give a file as Fit.save "
            "wrote it"
        ) from error


def _one_line(error: Exception) -> str:
    """What an error says, with its kind where it says only a name."""
    text = " ".join(str(error).split())
    return text if isinstance(error, ValueError) else f"{type(error).__name__}: {text}"


def _check_whole(tree: xr.DataTree, run: Run) -> None:
    """Refuse a tree that lacks what a fit is made of."""
    held = _HELD | ({"responsibilities": {"prob", "labels"}} if "responsibilities" in tree else {})
    missing = [group for group in held if group not in tree]
    missing += [f"{g}/{n}" for g, names in held.items() if g in tree for n in names - set(tree[g])]
    if run.card is not None:  # of a user's own model the sites are compared
        tables = run.signature.of_kind("table")
        missing += [f"the data {r.name}" for r in tables if r.required and r.name not in run.data]
        checks.check_options(run.signature, run.options, run.method)
    if missing:
        raise ValueError(f"it lacks {', '.join(sorted(missing))}")
    computed, sites = computed_of(tree), tree["posterior"].data_vars.items()
    blank = [str(n) for n, v in sites if n not in computed and np.isnan(v).any()]
    if blank:
        raise ValueError(f"its posterior holds NaN for {blank}")


def _check_sites(tree: xr.DataTree, run: Run) -> None:
    """Refuse a model that is not the one whose sites and densities a file holds."""
    stored = {str(n): v.shape[2:] for n, v in tree["posterior"].data_vars.items()}
    try:
        with run.precision:
            sites = shapes_of(run.problem)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"the model does not run on the data and options in the file ({error}); pass the model "
            "and the options that were fitted"
        ) from error
    if sites != stored:
        raise ValueError(
            f"the model has the sites {sites}, the file those of {stored}; pass the model and the "
            "options that were fitted"
        )
    taken = {role.name for role in run.signature.of_kind("links")}
    surplus = sorted(run.links.keys() - taken)
    if surplus:
        raise ValueError(
            f"the file holds links for {surplus}, and the model takes {sorted(taken) or 'no links'}; "
            "pass the model that was fitted"
        )
    other = other_densities(tree, run)
    if other is not None:
        raise ValueError(
            f"the model gives {other} another log density than the file holds, at a draw and the data in "
            "it; pass the model and the options that were fitted"
        )
