"""Many fits, side by side or on a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from sidebayes.guides.engines.plumbing.identity import NamelessError, digest, freeze, written

from .api import fit, load
from .common.files import as_path
from .results.fit import Fit
from .runs.arguments import find_method, read_run
from .runs.run import stated_options
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


def fit_each(
    each: Mapping[str, Mapping[str, Any]],
    *data: Any,
    folder: str | Path | None = None,
    n_jobs: int | None = None,
    progress: bool = True,
    **common: Any,
) -> dict[str, Fit]:
    """Fit many times: several engines, models, options, seeds or data, for one `sidebayes.fit` each.

    Parameters
    ----------
    each : mapping of str to mapping
        By the name of the fit, the arguments of `sidebayes.fit` that it has for itself, such as
        ``{"em": {"engine": "em"}, "nuts": {"engine": "nuts"}}``; ``method`` and data by name may be
        among them.
    *data
        Data that all fits have in common, in the order of the model's arguments.
    folder : path, optional
        Every fit is written here as ``name.nc`` by the worker that made it, and read if it is there: the
        same call goes on after an interruption. Workers on several machines need a folder that all see.
    n_jobs : int, optional
        Number of fits side by side; None is one, or what ``joblib.parallel_config`` says, which may name a
        cluster. The fits are the same.
    progress : bool
    **common
        Arguments of `sidebayes.fit` for all fits; those in `each` go first.

    Returns
    -------
    dict of str to Fit
        In the order of `each`, as `sidebayes.compare` takes them.

    Raises
    ------
    TypeError, ValueError, FitError
        As `sidebayes.fit`, with a note that names the fit; or if the folder holds another fit of that
        name.

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
            f"each = {each!r:.60}; pass {{name: arguments of the fit}}, such as {{'em': {{'engine': 'em'}}}}"
        )
    if not each:
        raise ValueError("each is empty; pass {name: arguments of the fit, ...}")
    lacking = [name for name, own in each.items() if "method" not in {**common, **own}]
    if lacking:
        raise TypeError(f"{lacking[0]} has no method; pass method=..., for all fits or in each")
    place = None if folder is None else as_path(folder)
    if place is not None:
        place.mkdir(parents=True, exist_ok=True)
        odd = [name for name in each if Path(f"{name}.nc").name != f"{name}.nc"]
        if odd:
            raise ValueError(f"{odd[0]!r} names a fit and cannot name a file; leave out slashes")
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
    told = method, shared.data, arguments
    if not path.is_file():
        asked = _asked(*told)
        found = fit(method, *shared.data, progress=False, **arguments)
        found.tree.attrs[_STAMP] = asked
        found.save(path)
        return found
    found = load(path, None if isinstance(method, str) else method)
    held = found.tree.attrs.get(_STAMP)
    # earlier files tell what was given at its default from what was left out
    if held != _asked(*told) and held != _asked(*told, as_given=True):
        raise ValueError(
            f"{path} holds a fit of other data, model, options, seed or start; name another folder, or "
            "remove it"
        )
    return found


def _asked(method: Any, data: tuple, arguments: dict[str, Any], *, as_given: bool = False) -> str:
    """Digest of all that decides a fit, the same for what is left out and given at its default.

    Parameters
    ----------
    as_given : bool
        Tell these two apart, and arguments in one order from those in another.
    """
    defaults = {"seed": 0, "dtype": "float64", "init": None}
    how = {name: arguments.get(name, default) for name, default in defaults.items()}
    if isinstance(how["init"], Fit):
        how["init"] = how["init"].params
    if as_given:
        how = {name: value for name, value in how.items() if name in {"init", *arguments}}
    rest = {name: value for name, value in arguments.items() if name not in _BESIDES}
    if scan_among(data, rest) is None:
        run = read_run(method, data, rest, arguments.get("engine"))
        asked = dict(run.data), dict(run.options) if as_given else run.stated
        told: Any = run.model, *asked, run.engine
    else:  # what it holds is not read
        model = find_method(method)[1]
        told = (
            model,
            data,
            rest if as_given else stated_options(model, rest),
            arguments.get("engine"),
        )
    frozen = freeze((told, how))
    try:
        return digest(written(frozen, own_code=True))
    except NamelessError as error:
        raise ValueError(
            f"{error}, so that a stored fit could not be told from another; leave folder out, or give that "
            "by a function or class of a module"
        ) from None
