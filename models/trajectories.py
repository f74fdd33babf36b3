"""Mixture of Gaussian-process regressions under a Dirichlet process, with labels tied by links."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax.typing import ArrayLike

from .blocks.kernels.curve_checks import check_own, count_outputs
from .blocks.kernels.curve_density import CurveDensity
from .blocks.kernels.curve_setting import curve_anchors, curve_mean, curve_scales, curve_setting
from .blocks.kernels.curves import Curves
from .blocks.label_inference.approximate import Inference
from .blocks.label_inference.label_graph import LabelGraph, as_label_graph
from .blocks.mixtures.linked_categorical import LinkedCategorical
from .blocks.mixtures.linked_mixture import LinkedMixture
from .blocks.mixtures.sticks import check_truncation, stick_weights
from .blocks.roles import Chosen, Held, Truncation
from .blocks.side_information.groups import Groups, as_groups
from .blocks.side_information.links import Links

__all__ = ["trajectories"]


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
    mean: Annotated[ArrayLike | None, Chosen(curve_mean), Held()] = None,
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
        Inputs of the curves, such as times.
    subjects : Groups, optional
        All rows of a subject have one label, which is drawn once. Without them each row has its own.
    links : Links, LabelGraph or None
        Links between subjects, by their numbers in ``subjects.names``, or between rows if there are
        no subjects.
    anchors : array_like, shape (num_anchors, num_inputs), optional
        Inputs at which curves are represented; by default `fit` chooses them by `curve_anchors`,
        and under bare NumPyro they are all rows.
    observed : array_like, shape (num_rows,) or (num_rows, num_outputs), optional
        One where an output of a row was measured, zero where it was not: the value of y there is
        ignored. By default all outputs were measured.
    num_clusters : int
        Truncation level, at most 100, or the number of points if that is larger.
    kernel : {"rbf", "matern32", "matern52"}
    length_scale : float, array_like of shape (num_inputs,), or Distribution, optional
        Length-scale in units of the inputs. None learns it, with a log-normal prior whose median is
        a fifth of the range of the inputs.
    amplitude : float or Distribution, optional
        Standard deviation of the curves, in units of y. None learns it, with a log-normal prior
        whose median is the standard deviation of y.
    noise : float, array_like of shape (num_outputs,), or Distribution, optional
        Standard deviation about the curves, common to all outputs or one per output; a prior of the
        latter is a distribution of vectors. None learns a common value, with a log-normal prior
        whose median is a fifth of the standard deviation of y.
    own : some of {"length_scale", "amplitude", "noise"}
        Learned parameters of which every cluster has its own.
    mean : array_like, shape () or (num_outputs,), optional
        Prior mean of the curves, to which they return far from data. By default that of y, by
        output, if the amplitude is left out too, and zero if the amplitude is given or has a prior.
    concentration : float or Distribution
        :math:`\alpha`.
    truncation : {"closed", "open"}
        Whether the last cluster takes all the remaining mass (Blei and Jordan 2006), or has a stick of
        its own that leaves some mass out, as in the paper.
    reading : {"unnormalised", "field", "relation"}
        "unnormalised" is the joint density that the paper's updates increase: the links tilt the
        prior of the sticks by their partition function. "field" divides by it, for every value of
        the sticks. "relation" reads links as statements about independent labels; see `ppc`.
    weight_per : {"point", "chunklet"}
        Whether n subjects that hard links join count n times in the weights, or once.
    inference : str or inference object
        What to do with loopy connected sets too wide for exact summation.
    inducing : int, optional
        Represent curves by this many inducing points: the fully independent training conditional
        (FITC), a different model, which tends to the Gaussian process as their number grows.

    References
    ----------
    Ross and Dy (2013), ICML, PMLR 28(3), 1346-1354; its eqs. 4, 13, 18 and 25 are corrected here, see the
    documentation. Blei and Jordan (2006), Bayesian Anal. 1, 121-143, doi:10.1214/06-BA104. Snelson
    and Ghahramani (2006), NIPS 18, 1257-1264.
    """
    anchors = inputs if anchors is None else anchors
    subjects = None if subjects is None else as_groups(subjects)
    units = jnp.shape(inputs)[0] if subjects is None else subjects.num_groups
    graph = as_label_graph(links, units, num_clusters, inference)
    check_truncation(truncation, reading)
    check_own(own)
    log_weights = stick_weights(num_clusters, concentration, truncation)
    labels = LinkedCategorical(
        log_weights, graph, reading=reading, weight_per=weight_per, inference=inference
    )

    given: dict[str, Any] = {"length_scale": length_scale, "amplitude": amplitude, "noise": noise}
    setting = curve_setting(
        y, inputs, anchors, subjects, observed, kernel=kernel, mean=mean, **given
    )
    num_outputs = count_outputs(y)
    scales = curve_scales(setting, num_clusters, num_outputs, own, **given)
    curves = Curves(num_clusters, jnp.shape(anchors)[0], num_outputs, setting).sample()
    density = CurveDensity(
        kernel, inputs, anchors, curves, mean=setting.mean, observed=observed, **scales
    )
    numpyro.sample("y", LinkedMixture(labels, density, groups=subjects), obs=y)
