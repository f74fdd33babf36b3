"""The setting in which curves are fitted: their anchors, typical scales, and learned scales."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import Array
from jax.typing import ArrayLike
from numpy.typing import NDArray

from sidebayes.common.arrays import is_traced
from sidebayes.common.magnitudes import shown

from ..numbers import library_of
from ..side_information.groups import Groups
from .curve_checks import (
    SCALES,
    check_anchors,
    check_inducing,
    check_mean,
    check_measured,
    check_positive,
    check_scale_shapes,
    count_outputs,
    measured_mean,
)
from .curve_starts import Setting
from .curves import Scale
from .stationary import as_columns, check_kernel, choose_anchors

__all__ = ["curve_anchors", "curve_mean", "curve_scales", "curve_setting"]

_MOST_ANCHORS = 1000
"""Number of anchors up to which curves are exact by default; the cost of a step is cubic in it."""


def curve_anchors(data: Mapping[str, Any], options: Mapping[str, Any]) -> NDArray:
    """Anchors of the curves if none are given.

    If the length-scale is known, anchors are added until they leave at most a share of 1e-12 of the
    variance of any value unexplained. Curves are then exact to rounding; smooth curves need few
    anchors. If the length-scale is learned, the anchors are all distinct inputs. ``inducing`` is
    their maximum number.

    Parameters
    ----------
    data : mapping
        Data of `trajectories` by name: ``inputs``, and ``y`` and ``observed`` if there are any.
    options : mapping
        Options of `trajectories` by name.

    Returns
    -------
    ndarray, shape (num_anchors, num_inputs)

    Raises
    ------
    ValueError
        If exact curves need more than 1000, or `observed` holds other than ones and zeros.
    """
    check_measured(data.get("observed"), data.get("y"))
    if options.get("mean") is not None:
        check_mean(options["mean"], count_outputs(data.get("y")))
    inputs = as_columns(np.asarray(data["inputs"]))
    kernel, inducing = options.get("kernel", "rbf"), options.get("inducing")
    given = options.get("length_scale")
    check_scale_shapes(inputs, length_scale=given)
    known = given is not None and not isinstance(given, dist.Distribution)
    if not known and inducing is None:
        anchors = np.unique(inputs, axis=0)
    else:
        check_kernel(kernel)
        if given is not None:
            check_positive("length_scale", given)
        scale = _typical_scales(None, None, inputs, given, 1.0, 1.0)["length_scale"]
        most = _MOST_ANCHORS + 1 if inducing is None else check_inducing(inducing)
        anchors, _ = choose_anchors(kernel, inputs, np.asarray(scale, float), most)
    if inducing is None and len(anchors) > _MOST_ANCHORS:
        raise ValueError(
            f"exact curves need more than {_MOST_ANCHORS} anchors (length_scale = {shown(given)}, "
            f"{len(np.unique(inputs, axis=0))} distinct inputs); pass inducing=200 for curves by so many "
            "inducing points, or a longer length_scale"
        )
    return anchors


def curve_mean(data: Mapping[str, Any], options: Mapping[str, Any]) -> NDArray | None:
    """Prior mean of the curves if none is given: that of y, or None if the amplitude is given.

    Parameters
    ----------
    data, options : mapping
        Data and options of `trajectories` by name.

    Returns
    -------
    ndarray, shape () or (num_outputs,)
    """
    mean = _mean_of(data.get("y"), data.get("observed"), options.get("amplitude"))
    return None if mean is None else np.asarray(mean)


def _mean_of(y: Any, observed: Any, amplitude: Any) -> Any:
    """Mean of the measurements; None if the amplitude is given or nothing was measured."""
    return None if y is None or amplitude is not None else measured_mean(y, observed)


def curve_setting(
    y: ArrayLike | None,
    inputs: ArrayLike,
    anchors: ArrayLike,
    subjects: Groups | None,
    observed: ArrayLike | None,
    *,
    kernel: str,
    length_scale: ArrayLike | dist.Distribution | None,
    amplitude: float | dist.Distribution | None,
    noise: ArrayLike | dist.Distribution | None,
    mean: ArrayLike | None,
) -> Setting:
    """Check the observations of curves, and derive typical scales from them if none are given.

    Parameters are those of `trajectories`.

    Raises
    ------
    ValueError
        If shapes do not agree, or a value is out of its range.
    """
    num_outputs = count_outputs(y)
    check_measured(observed, y)
    mean = _mean_of(y, observed, amplitude) if mean is None else mean
    mean = check_mean(0.0 if mean is None else mean, num_outputs)
    check_scale_shapes(inputs, length_scale=length_scale, amplitude=amplitude)
    check_anchors(anchors, inputs)
    typical = _typical_scales(y, observed, inputs, length_scale, amplitude, noise)
    codes = None if subjects is None else subjects.codes
    prior = "default" if length_scale is None else length_scale
    prior = prior if isinstance(prior, str | dist.Distribution) else None
    return Setting(
        kernel, inputs, anchors, codes, **typical, mean=mean, observed=observed, prior=prior
    )


def _typical_scales(y: Any, observed: Any, inputs: Any, *given: Any) -> dict[str, Any]:
    """Typical length-scale, amplitude and noise: as given, the mean of a prior, or from the data."""
    xp = library_of(y, observed, inputs)
    reach = xp.ptp(xp.asarray(inputs), axis=0)
    spread = 1.0
    if y is not None:
        table = xp.asarray(y)
        known = xp.ones(table.shape, bool) if observed is None else xp.asarray(observed) > 0
        square = xp.where(known, (table - measured_mean(y, observed)) ** 2, 0.0).sum()
        spread = xp.sqrt(square / xp.maximum(known.sum(), 1))
        spread = xp.where(spread == 0, 1.0, spread)
    default = xp.where(reach > 0, reach, 1.0) / 5, spread, spread / 5
    found = (
        own
        if one is None or is_traced(one)
        else one.mean
        if isinstance(one, dist.Distribution)
        else one
        for one, own in zip(given, default, strict=True)
    )
    return dict(zip(SCALES, found, strict=True))


def curve_scales(
    setting: Setting,
    num_clusters: int,
    num_outputs: int | None,
    own: Collection[str],
    **given: ArrayLike | dist.Distribution | None,
) -> dict[str, Any]:
    r"""Length-scale, amplitude and noise of the curves, in the form that `CurveDensity` takes.

    Scales that are not given are sampled from :math:`\text{LogNormal}(\log s, 1)` about their
    typical value s.

    Parameters
    ----------
    setting : Setting
    num_clusters : int
    num_outputs : int or None
    own : some of {"length_scale", "amplitude", "noise"}
        Learned scales with a separate value for every cluster.
    **given : array_like, Distribution or None
        All three scales by name; a distribution is the prior of a learned scale.

    Raises
    ------
    ValueError
        If a given scale is not positive, has the wrong shape, or is named in `own`.
    """
    scales: dict[str, Any] = {
        name: _scale(name, given[name], setting, num_clusters if name in own else None)
        for name in SCALES
    }
    if "length_scale" in own and scales["length_scale"].ndim == 1:
        scales["length_scale"] = scales["length_scale"][:, None]
    scales["noise"] = _by_output(scales["noise"], num_outputs, own="noise" in own)
    return scales


def _scale(name: str, given: Any, setting: Setting, num_clusters: int | None) -> Array:
    """A positive parameter, given or learned, common to all clusters or one per cluster."""
    if given is not None and not isinstance(given, dist.Distribution):
        if num_clusters is not None:
            raise ValueError(
                f"own names {name!r}, which is given as {shown(given)}; leave it out to learn it, or pass "
                "its prior"
            )
        return jnp.asarray(check_positive(name, given))
    typical = getattr(setting, name)
    prior = dist.LogNormal(jnp.log(typical), 1.0) if given is None else given
    if given is None and jnp.ndim(typical):
        prior = prior.to_event(jnp.ndim(typical))
    dim = "inputs" if name == "length_scale" else "outputs"
    own = setting if name == "length_scale" else None
    return Scale(name, prior, typical, num_clusters, dim, own).sample()


def _by_output(noise: Array, num_outputs: int | None, *, own: bool) -> Array:
    """Noise, with axes of clusters and outputs if it differs between outputs."""
    if noise.ndim == own:
        return noise
    if num_outputs is None or noise.shape[-1] != num_outputs:
        raise ValueError(
            f"noise has {noise.shape[-1]} values for {num_outputs or 1} outputs of y; pass one number, or "
            "one for each output"
        )
    return noise if own else noise[None]
