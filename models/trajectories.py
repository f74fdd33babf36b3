"""Mixture of Gaussian-process regressions under a Dirichlet process, whose labels links tie."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated, Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import Array
from jax.core import Tracer
from jax.typing import ArrayLike
from numpy.typing import NDArray

from sidebayes.common.fields import Range, check_number, real_array

from .blocks.kernels.curve_density import CurveDensity
from .blocks.kernels.curve_starts import Setting
from .blocks.kernels.curves import Curves, Scale
from .blocks.kernels.stationary import as_columns, check_kernel, choose_anchors
from .blocks.label_inference.approximate import Inference
from .blocks.label_inference.label_graph import LabelGraph, as_label_graph
from .blocks.mixtures.linked_categorical import LinkedCategorical, check_reading
from .blocks.mixtures.linked_mixture import LinkedMixture
from .blocks.mixtures.sticks import stick_weights
from .blocks.roles import Chosen, Truncation
from .blocks.side_information.links import Links
from .blocks.side_information.partial_labels import Groups

__all__ = ["trajectories"]

_MOST_ANCHORS = 1000
"""Anchors up to which curves are exact unasked; a step takes the cube of their number."""

_SCALES = frozenset(("length_scale", "amplitude", "noise"))
_MOST_OUTPUT_AXES = 2


def curve_anchors(data: Mapping[str, Any], options: Mapping[str, Any]) -> NDArray:
    """Anchors of the curves where none are given.

    Where the length-scale is known they are chosen until no value has a share of its variance above 1e-12
    that they leave unexplained, so that curves are exact to rounding: smooth curves need few. Where
    it is learned they are all distinct inputs. With ``inducing`` there are so many at most.

    Raises
    ------
    ValueError
        If exact curves need more than 1000, or `observed` holds other than ones and zeros.
    """
    _check_observed(data.get("observed"), data.get("y"))
    inputs = as_columns(np.asarray(data["inputs"]))
    kernel, inducing = options.get("kernel", "rbf"), options.get("inducing")
    given = options.get("length_scale")
    _check_sizes(inputs, length_scale=given)
    known = given is not None and not isinstance(given, dist.Distribution)
    if not known and inducing is None:
        anchors = np.unique(inputs, axis=0)
    else:
        check_kernel(kernel)
        if given is not None:
            _positive("length_scale", given)
        scale = _typical(None, None, inputs, given, 1.0, 1.0)["length_scale"]
        most = _MOST_ANCHORS + 1 if inducing is None else _check_inducing(inducing)
        anchors, _ = choose_anchors(kernel, inputs, np.asarray(scale, float), most)
    if inducing is None and len(anchors) > _MOST_ANCHORS:
        raise ValueError(
            f"exact curves need more than {_MOST_ANCHORS} anchors (length_scale = {given!r:.40}, "
            f"{len(np.unique(inputs, axis=0))} distinct inputs); pass inducing=200 for curves by so many "
            "inducing points, or a longer length_scale"
        )
    return anchors


def trajectories(
    y: Annotated[ArrayLike | None, "rows ..."],
    inputs: Annotated[ArrayLike, "rows ..."],
    subjects: Annotated[Groups | None, "rows"] = None,
    links: Annotated[Links | LabelGraph | None, "subjects|rows"] = None,
    anchors: Annotated[ArrayLike | None, "anchor ...", Chosen(curve_anchors)] = None,
    observed: Annotated[ArrayLike | None, "rows ..."] = None,
    *,
    num_clusters: Annotated[int, Truncation()] = 20,
    kernel: str = "rbf",
    length_scale: ArrayLike | dist.Distribution | None = None,
    amplitude: float | dist.Distribution | None = None,
    noise: ArrayLike | dist.Distribution | None = None,
    own: Collection[str] = (),
    mean: ArrayLike = 0.0,
    concentration: float | dist.Distribution = 1.0,
    truncation: str = "closed",
    reading: str = "unnormalised",
    weight_per: str = "point",
    inference: str | Inference = "exact",
    inducing: int | None = None,
) -> None:
    r"""Mixture of Gaussian-process regressions with links (Ross and Dy 2013).

    .. math:: v_k \sim \text{Beta}(1, \alpha), \quad \pi_k = v_k \prod_{j<k} (1 - v_j), \quad
              P(z) \propto \prod_s \pi_{z_s} \prod_{(s,t)} e^{w_{st} [z_s = z_t]}, \\
              f_{kd} \sim \mathcal{GP}(m_d, a^2 \kappa(x, x'; \ell)), \quad
              y_{nd} \mid z_{s(n)} = k \sim N(f_{kd}(x_n), \sigma^2)

    for row n of subject s(n). Labels are summed out exactly along the links. Curves are written
    :math:`f = m + a \Phi w` with white weights w at anchors; see `CurveDensity`.

    The paper's :math:`\theta_0` is :math:`a^2`, its :math:`\theta_1` is :math:`\ell^{-2}`. Weights here are
    log-odds; a cannot-link of the paper's weight w has -w.

    Parameters
    ----------
    y : array_like, shape (num_rows,) or (num_rows, num_outputs), or None
        Outputs share the label and, given it, are independent. None simulates one output.
    inputs : array_like, shape (num_rows,) or (num_rows, num_inputs)
        Times, say.
    subjects : Groups, optional
        All rows of a subject have one label, which is drawn once. Without them each row has its own.
    links : Links, LabelGraph or None
        Between subjects, by their numbers in ``subjects.names``; between rows where there are no subjects.
    anchors : array_like, shape (num_anchors, num_inputs), optional
        Inputs at which curves are described; `fit` chooses them as `curve_anchors` says, and under bare
        NumPyro they are all rows.
    observed : array_like, shape (num_rows,) or (num_rows, num_outputs), optional
        One where an output of a row was measured, zero where it was not: whatever y holds there says
        nothing, the other outputs of the row still do. Without it all were.
    num_clusters : int
        Truncation level.
    kernel : {"rbf", "matern32", "matern52"}
    length_scale : float, array_like of shape (num_inputs,), or Distribution, optional
        In units of the inputs. None learns it: log-normal, median a fifth of the inputs' range.
    amplitude : float or Distribution, optional
        Standard deviation of the curves, in units of y. None learns it: log-normal, median the standard
        deviation of y.
    noise : float, array_like of shape (num_outputs,), or Distribution, optional
        Standard deviation about the curves; of all outputs, or of each, for which a prior is one of vectors.
        None learns one of all: log-normal, median a fifth of the standard deviation of y.
    own : some of {"length_scale", "amplitude", "noise"}
        Learned parameters of which every cluster has its own.
    mean : array_like, shape () or (num_outputs,)
        Of the curves a priori; that of the data, unless zero is where curves return to.
    concentration : float or Distribution
        :math:`\alpha`.
    truncation : {"closed", "open"}
        Whether the last cluster takes all that is left (Blei and Jordan 2006), or a stick of its own
        leaves some beyond it, as the paper has it.
    reading : {"unnormalised", "field", "relation"}
        "unnormalised" is the joint density that the paper's updates climb: the links tilt the prior of the
        sticks by their partition function. "field" divides by it, for every value of the sticks.
        "relation" reads links as statements about independent labels; see `ppc`.
    weight_per : {"point", "chunklet"}
        Whether n subjects that hard links join count n times in the weights, or once.
    inference : str or inference object
        What to do with loopy connected sets too wide for exact summation.
    inducing : int, optional
        Describe curves by so many inducing points: the fully independent training conditional (FITC), a
        model of its own that tends to the Gaussian process as they grow.

    References
    ----------
    Ross and Dy (2013), ICML, PMLR 28(3), 1346-1354; its eqs. 4, 13, 18 and 25 are corrected here, see the
    documentation. Blei and Jordan (2006), Bayesian Anal. 1, 121-143, doi:10.1214/06-BA104. Snelson
    and Ghahramani (2006), NIPS 18, 1257-1264.
    """
    anchors = inputs if anchors is None else anchors
    units = jnp.shape(inputs)[0] if subjects is None else subjects.num_groups
    graph = as_label_graph(links, units, num_clusters, inference)
    _check(truncation, reading, own)
    if isinstance(concentration, dist.Distribution):
        concentration = numpyro.sample("concentration", concentration)
    elif not isinstance(concentration, Array):
        concentration = check_number("concentration", concentration, Range(above=0.0))
    log_weights = stick_weights(num_clusters, concentration, truncation)

    num_outputs = _num_outputs(y)
    _check_observed(observed, y)
    mean = _finite_mean(mean, num_outputs)
    _check_sizes(inputs, length_scale=length_scale, amplitude=amplitude)
    _check_anchors(anchors, inputs)
    typical = _typical(y, observed, inputs, length_scale, amplitude, noise)
    codes = None if subjects is None else subjects.codes
    prior = "default" if length_scale is None else length_scale
    prior = prior if isinstance(prior, str | dist.Distribution) else None
    setting = Setting(
        kernel, inputs, anchors, codes, **typical, mean=mean, observed=observed, prior=prior
    )
    scales: dict[str, Any] = {
        name: _scale(name, given, setting, num_clusters if name in own else None)
        for name, given in zip(typical, (length_scale, amplitude, noise), strict=True)
    }
    if "length_scale" in own and scales["length_scale"].ndim == 1:
        scales["length_scale"] = scales["length_scale"][:, None]
    scales["noise"] = _by_output(scales["noise"], num_outputs, own="noise" in own)
    curves = Curves(num_clusters, jnp.shape(anchors)[0], num_outputs, setting).sample()
    labels = LinkedCategorical(
        log_weights, graph, reading=reading, weight_per=weight_per, inference=inference
    )
    density = CurveDensity(kernel, inputs, anchors, curves, mean=mean, observed=observed, **scales)
    numpyro.sample("y", LinkedMixture(labels, density, groups=subjects), obs=y)


def _scale(name: str, given: Any, setting: Setting, num_clusters: int | None) -> Array:
    """A positive parameter, given or learned, of all clusters or of each."""
    if given is not None and not isinstance(given, dist.Distribution):
        if num_clusters is not None:
            raise ValueError(
                f"own names {name!r}, which is given as {given!r:.40}; leave it out to learn it, or pass "
                "its prior"
            )
        return jnp.asarray(_positive(name, given))
    typical = getattr(setting, name)
    prior = dist.LogNormal(jnp.log(typical), 1.0) if given is None else given
    if given is None and jnp.ndim(typical):
        prior = prior.to_event(jnp.ndim(typical))
    dim = "inputs" if name == "length_scale" else "outputs"
    own = setting if name == "length_scale" else None
    return Scale(name, prior, typical, num_clusters, dim, own).sample()


def _by_output(noise: Array, num_outputs: int | None, *, own: bool) -> Array:
    """Noise with axes of clusters and outputs, where it differs between outputs."""
    if noise.ndim == own:
        return noise
    if num_outputs is None or noise.shape[-1] != num_outputs:
        raise ValueError(
            f"noise has {noise.shape[-1]} values for {num_outputs or 1} outputs of y; pass one number, or "
            "one for each output"
        )
    return noise if own else noise[None]


def _check_observed(observed: Any, y: Any) -> None:
    if observed is not None and y is not None and jnp.shape(observed) != jnp.shape(y):
        raise ValueError(
            f"observed has shape {jnp.shape(observed)}, y has {jnp.shape(y)}; pass a one or a zero for each "
            "value of y"
        )
    if observed is None or isinstance(observed, Tracer):
        return
    table = np.asarray(observed, float)
    if not np.isin(table, (0.0, 1.0)).all():
        bad = table[~np.isin(table, (0.0, 1.0))][0]
        raise ValueError(f"observed holds {bad:.6g}; expected one for what was measured, else zero")
    if not table.any():
        raise ValueError(
            "observed is zero everywhere, so that nothing was measured; it is one where y holds a measurement"
        )


def _finite_mean(mean: Any, num_outputs: int | None) -> Array | NDArray:
    if isinstance(mean, Array):
        return mean
    value = real_array("mean", mean)
    if value.shape not in ((), (num_outputs,)) or not np.isfinite(value).all():
        raise ValueError(
            f"mean = {mean!r:.60}; expected a finite number, or one for each of several outputs"
        )
    return value


def _positive(name: str, given: Any) -> NDArray:
    """A positive number; for length-scales one for each input, for noise one for each output."""
    value = real_array(name, given)
    if value.ndim > (name != "amplitude") or not (np.isfinite(value) & (value > 0)).all():
        raise ValueError(f"{name} = {given!r:.60}; expected a positive number or a distribution")
    return value


def _check_sizes(inputs: Any, **scales: Any) -> None:
    """Refuse scales of more than one number, but length-scales with one for each input."""
    number = jnp.shape(inputs)[1] if jnp.ndim(inputs) > 1 else 1
    for name, given in scales.items():
        if given is None:
            continue
        is_prior = isinstance(given, dist.Distribution)
        shape = given.batch_shape + given.event_shape if is_prior else np.shape(given)
        if name == "length_scale" and shape not in ((), (number,)):
            raise ValueError(
                f"length_scale has shape {shape} for {number} columns of inputs; pass one number, or one "
                "for each column"
            )
        if name == "amplitude" and shape:
            raise ValueError(
                f"amplitude has shape {shape}; pass one number, or a distribution of one number"
            )


def _check_anchors(anchors: Any, inputs: Any) -> None:
    """Refuse anchors that are no rows of inputs."""
    shapes = [jnp.shape(one) for one in (anchors, inputs)]
    columns = [shape[1] if len(shape) > 1 else 1 for shape in shapes]
    if len(shapes[0]) not in (1, 2) or columns[0] != columns[1]:
        raise ValueError(
            f"anchors have shape {shapes[0]} for {columns[1]} columns of inputs; pass a row of inputs for "
            "each anchor, or leave them out"
        )


def _check(truncation: str, reading: str, own: Collection[str]) -> None:
    check_reading(reading)
    if isinstance(truncation, str) and truncation == "open" and reading != "unnormalised":
        raise ValueError(
            f"truncation='open' leaves mass out, so that labels under reading={reading!r:.40} have no law; "
            "pass truncation='closed', or reading='unnormalised'"
        )
    listed = isinstance(own, Collection) and not isinstance(own, str | bytes)
    if not listed or not {one if isinstance(one, str) else None for one in own} <= _SCALES:
        raise ValueError(
            f"own = {own!r:.60}; expected some of 'length_scale', 'amplitude' and 'noise', in a list"
        )


def _check_inducing(inducing: Any) -> int:
    if isinstance(inducing, bool) or not isinstance(inducing, int) or inducing < 1:
        raise ValueError(f"inducing = {inducing!r:.60}; expected a number of inducing points")
    return inducing


def _num_outputs(y: ArrayLike | None) -> int | None:
    shape = (0,) if y is None else jnp.shape(y)
    if len(shape) > _MOST_OUTPUT_AXES:
        raise ValueError(f"y has shape {shape}; expected (rows,) or (rows, outputs)")
    return shape[1] if len(shape) > 1 else None


def _typical(y: Any, observed: Any, inputs: Any, *given: Any) -> dict[str, Any]:
    """Typical length-scale, amplitude and noise: as given, the mean of a prior, or read off the data."""
    xp = jnp if any(isinstance(one, Tracer) for one in (y, observed, inputs)) else np
    reach = xp.ptp(xp.asarray(inputs), axis=0)
    spread = 1.0
    if y is not None:
        table = xp.asarray(y)
        known = xp.ones(table.shape, bool) if observed is None else xp.asarray(observed) > 0
        table = xp.where(known, table, 0.0)
        middle = table.sum(axis=0) / xp.maximum(known.sum(axis=0), 1)
        square = xp.where(known, (table - middle) ** 2, 0.0).sum()
        spread = xp.sqrt(square / xp.maximum(known.sum(), 1))
        spread = xp.where(spread == 0, 1.0, spread)
    default = xp.where(reach > 0, reach, 1.0) / 5, spread, spread / 5
    found = (
        own if one is None else one.mean if isinstance(one, dist.Distribution) else one
        for one, own in zip(given, default, strict=True)
    )
    return dict(zip(("length_scale", "amplitude", "noise"), found, strict=True))
