"""Many fits, side by side or on a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import xarray as xr

from sidebayes.diagnostics.names import listed
from sidebayes.guides.engines.plumbing.identity import NamelessError, digest, freeze, written

from .api import fit, load
from .common.files import is_damaged, is_sealed
from .common.folders import made_folder
from .common.magnitudes import shown
from .results.fit import Fit
from .runs.arguments import find_method, read_run
from .runs.run import Run, stated_options
from .streams import scan_among
from .tasks import Task, run_tasks

__all__ = ["fit_each"]

_STAMP = "sidebayes_asked"
"""Attribute of a stored fit that tells what was asked for."""
_BESIDES = (
    "checkpoint",
    "checkpoint_every",
    "dtype",
    "engine",
    "feature_names",
    "init",
    "seed",
    "truth",
)
"""Arguments of `sidebayes.fit` that are neither data nor options of a model."""
_DESCRIBES = ("truth", "feature_names")
"""Those of them that describe the data of a fit, and do not change it."""


def fit_each(
    each: Mapping[str, Mapping[str, Any]],
    *data: Any,
    folder: str | Path | None = None,
    n_jobs: int | None = None,
    progress: bool = True,
    **common: Any,
) -> dict[str, Fit]:
    """Run `sidebayes.fit` for each of several engines, models, options, seeds or data.

    Parameters
    ----------
    each : mapping of str to mapping
        Arguments of `sidebayes.fit` for each fit alone, by the name of the fit, such as
        ``{"em": {"engine": "em"}, "nuts": {"engine": "nuts"}}``; ``method`` and data by name may be
        among them.
    *data
        Data that all fits have in common, in the order of the model's arguments.
    folder : path, optional
        Each fit is written here as ``name.nc`` by the worker that made it, and read if it is there
        already: the same call continues after an interruption. A fit that is read takes the ``truth``
        of this call. Workers on several machines need a folder that all of them can access.
    n_jobs : int, optional
        Number of fits to run in parallel; None is one, or what ``joblib.parallel_config`` sets,
        which may name a cluster. The fits are the same.
    progress : bool
    **common
        Arguments of `sidebayes.fit` for all fits; those in `each` take precedence.

    Returns
    -------
    dict of str to Fit
        In the order of `each`, as `sidebayes.compare` takes them.

    Raises
    ------
    TypeError, ValueError, FitError
        As for `sidebayes.fit`, with a note that names the fit; or if the folder holds a different
        fit of that name, or one whose columns have other names.

    Examples
    --------
    >>> import sidebayes
    >>> iris = sidebayes.load_dataset("iris")
    >>> numbers = {f"{k} clusters": {"num_clusters": k} for k in (2, 3)}
    >>> fits = sidebayes.fit_each(numbers, iris.x, method="gmm", engine="em")
    >>> list(fits)
    ['2 clusters', '3 clusters']
    """
    if not isinstance(each, Mapping) or not all(isinstance(one, Mapping) for one in each.values()):
        raise TypeError(
            f"each = {shown(each)}; pass {{name: arguments of the fit}}, such as {{'em': {{'engine': 'em'}}}}"
        )
    if not each:
        raise ValueError("each is empty; pass {name: arguments of the fit, ...}")
    twice = [name for name in each if not isinstance(name, str) and str(name) in each]
    if twice:
        raise ValueError(
            f"{twice[0]!r} and {str(twice[0])!r} name one fit; give each a name of its own"
        )
    loud = [name for name, own in each.items() if "progress" in own]
    if loud:
        raise TypeError(
            f"each[{loud[0]!r}] has progress, which is of all fits; pass it to fit_each"
        )
    lacking = [name for name, own in each.items() if "method" not in {**common, **own}]
    if lacking:
        raise TypeError(f"{lacking[0]} has no method; pass method=..., for all fits or in each")
    odd = [name for name in each if Path(f"{name}.nc").name != f"{name}.nc"]
    if folder is not None and odd:
        raise ValueError(f"{odd[0]!r} names a fit and cannot name a file; leave out slashes")
    place = None if folder is None else made_folder(folder)
    found = run_tasks(
        _one,
        (Task(str(name), _Own(str(name), dict(own))) for name, own in each.items()),
        _Common(data, common, place),
        n_jobs=n_jobs,
        title="fits",
        total=len(each),
        progress=progress,
    )
    return dict(zip(map(str, each), found, strict=True))


class _Common(NamedTuple):
    data: tuple
    arguments: dict[str, Any]
    folder: Path | None


class _Own(NamedTuple):
    name: str
    arguments: dict[str, Any]


def _one(shared: _Common, own: _Own) -> Fit:
    arguments = {**shared.arguments, **own.arguments}
    method = arguments.pop("method")
    if shared.folder is None:
        return fit(method, *shared.data, progress=False, **arguments)
    path = shared.folder / f"{own.name}.nc"
    run = _run(method, shared.data, arguments)
    asked = method, shared.data, arguments, run
    if not path.is_file():
        stamp = _stamp(*asked)
        found = fit(method, *shared.data, progress=False, **arguments)
        found.tree.attrs[_STAMP] = stamp
        found.save(path)
        return found
    found = _stored(path, None if isinstance(method, str) else method)
    held = found.tree.attrs.get(_STAMP)
    if held is None:
        raise ValueError(
            f"{path} was not written by fit_each, and does not tell what was asked for; load it by "
            "sidebayes.load, and name another folder here"
        )
    # files of earlier versions distinguish an option given at its default from one left out
    if held != _stamp(*asked) and held != _stamp(*asked, as_given=True):
        raise ValueError(
            f"{path} holds a fit of other data, model, options, seed or start; name another folder, or "
            "remove it"
        )
    return found if run is None else _described_as(found, run, path)


def _stored(path: Path, model: Any) -> Fit:
    """Return a fit of an earlier call."""
    try:
        return load(path, model)
    except ValueError as error:
        if is_sealed(path) and not is_damaged(path):  # the file is not to blame
            raise
        raise ValueError(
            f"{path} is damaged, or no fit; remove it, and this call fits it anew"
        ) from error


def _run(method: Any, data: tuple, arguments: dict[str, Any]) -> Run | None:
    """Return the run of a fit; None for a table on disk, which is not read."""
    rest = {name: value for name, value in arguments.items() if name not in _BESIDES}
    if scan_among(data, rest) is not None:
        return None
    beside = {name: arguments[name] for name in _DESCRIBES if name in arguments}
    return read_run(method, data, rest, arguments.get("engine"), **beside)


def _described_as(found: Fit, run: Run, path: Path) -> Fit:
    """Return a stored fit with the truth of a run that is otherwise the same."""
    stored, names = found.run, dict(run.columns)
    if (stored.feature_names, dict(stored.columns)) != (run.feature_names, names):
        raise ValueError(
            f"{path} holds a fit whose columns have the names {_named(stored)}, and now they have "
            f"{_named(run)}; give the same names, name another folder, or remove it"
        )
    observed = found.tree["observed_data"].to_dataset().drop_vars("truth", errors="ignore")
    if run.truth is not None:
        observed = observed.assign(truth=("points", run.truth))
    tree = found.tree.copy()
    tree["observed_data"] = xr.DataTree(observed)
    return Fit(tree, replace(stored, truth=run.truth))


def _named(run: Run) -> str:
    """Return the names of the columns of all tables that have some."""
    given = run.columns.values() or [run.feature_names]
    return listed([name for names in given for name in names])


def _stamp(
    method: Any,
    data: tuple,
    arguments: dict[str, Any],
    run: Run | None,
    *,
    as_given: bool = False,
) -> str:
    """Return a digest of all that decides a fit, the same for options left out or given at their defaults.

    Parameters
    ----------
    as_given : bool
        Distinguish these two, and arguments in one order from those in another.
    """
    defaults = {"seed": 0, "dtype": "float64", "init": None}
    how = {name: arguments.get(name, default) for name, default in defaults.items()}
    if isinstance(how["init"], Fit):
        how["init"] = how["init"].params
    if as_given:
        how = {name: value for name, value in how.items() if name in {"init", *arguments}}
    if run is None:
        model = find_method(method)[1]
        rest = {n: v for n, v in arguments.items() if n not in _BESIDES or n in _DESCRIBES}
        options = rest if as_given else stated_options(model, rest)
        decides: Any = model, data, options, arguments.get("engine")
    else:
        options = dict(run.options) if as_given else run.stated
        decides = run.model, dict(run.data), options, run.engine
    frozen = freeze((decides, how))
    try:
        return digest(written(frozen, own_code=True))
    except NamelessError as error:
        raise ValueError(
            f"{error}, so that a stored fit could not be told from another; leave folder out, or give that "
            "by a function or class of a module"
        ) from None
