"""Choice of the number of prototypes per component, by growth under a code length."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.nn import log_softmax, logsumexp, softmax
from numpy.typing import ArrayLike, NDArray
from scipy import special
from sidebayes.models.blocks.classes.anchors import room_for
from sidebayes.models.blocks.classes.class_mixture import log_of
from sidebayes.models.blocks.classes.prototypes import Prototypes, without_prototypes
from sidebayes.models.blocks.classes.stated import labelled_points, shares_of_classes

from .engines.steps.lbfgs import minimise

__all__ = ["GrownPrototypes", "grown_prototypes", "matched_scales", "prototype_code_length"]

_STEPS = 60
"""Number of gradients of L-BFGS by which prototypes are placed."""

_HELD = 0.5
"""Number of labelled points of a class that a component must hold for a first prototype."""

_ROOM = 8
"""Increment by which arrays of prototypes grow, so that few programs are compiled."""


class GrownPrototypes(NamedTuple):
    """Prototypes that growth found.

    Attributes
    ----------
    points : ndarray, shape (num_prototypes, num_features)
    clusters, classes : ndarray of int, shape (num_prototypes,)
    scale : ndarray, shape (num_clusters,)
    path : list of (int, float)
        Number of prototypes and code length in nats, before growth and after each insertion that was
        kept.
    """

    points: NDArray[np.float64]
    clusters: NDArray[np.int64]
    classes: NDArray[np.int64]
    scale: NDArray[np.float64]
    path: list[tuple[int, float]]


def prototype_code_length(
    log_likelihood: float,
    num_points: int,
    num_known: int,
    num_features: int,
    num_classes: int,
    num_clusters: int,
    per_component: int,
    num_prototypes: int,
) -> float:
    r"""Code length of a mixture with prototypes, in nats (Raghuram 2014, section 2.4.5).

    .. math:: -\mathcal L + \tfrac12 (L - 1 + L\Gamma) \log N + \tfrac L2 \log N_l
              + P\,(\tfrac d2 \log N_l + \log C + \log L)

    Half a log number of points for each real parameter, of labelled points for those of classes.

    Parameters
    ----------
    log_likelihood : float
    num_points, num_known : int
        All rows, and those whose class is known.
    num_features, num_classes, num_clusters : int
    per_component : int
        Free parameters :math:`\Gamma` of a component's density.
    num_prototypes : int
    """
    known = np.log(max(num_known, 1))
    mixture = (num_clusters - 1 + num_clusters * per_component) * np.log(num_points)
    each = num_features * known / 2 + np.log(num_classes) + np.log(num_clusters)
    return float(-log_likelihood + mixture / 2 + num_clusters * known / 2 + num_prototypes * each)


def grown_prototypes(
    x: ArrayLike,
    log_joint: ArrayLike,
    stated: ArrayLike,
    *,
    per_component: int,
    lookahead: int = 1,
    most: int = 200,
    threshold: float = 1e-3,
    prior: tuple[ArrayLike, ArrayLike] | None = None,
    progress: Callable[[int], None] | None = None,
) -> GrownPrototypes:
    r"""Prototypes of every component, added greedily while the code length falls.

    Components stay as they are, so that those which grow early steal no points of others. Begins with
    a prototype for each class that a component holds half a labelled point of, at the mean of these
    points; a component that holds no such class keeps the class shares of all labelled points. Then adds the
    labelled point whose class it makes most probable, places all prototypes of the component anew, and
    takes it back unless that pays.

    Parameters
    ----------
    x : array_like, shape (num_points, num_features)
    log_joint : array_like, shape (num_points, num_clusters)
        :math:`\log \pi_j p(x_i | \theta_j)`.
    stated : array_like, shape (num_points, num_classes)
        See `stated_classes`; rows of ones state nothing.
    per_component : int
        Free parameters of a component's density.
    lookahead : int
        Insertions that may raise the code length before growth gives up. One is the thesis' rule, which
        stalls where the classes of a component share a centre, as XOR does; so did three, when tried.
    most : int
        Most prototypes.
    threshold : float
        Least posterior probability of a component for a labelled point to become its prototype.
    prior : (array_like, array_like), optional
        Centre and deviation by feature of a normal prior of prototypes. Without one they move away
        without bound wherever they separate the labelled points of a component.
    progress : callable, optional
        Called with the number of prototypes, of those to begin with and after each insertion.

    References
    ----------
    Raghuram (2014), section 2.4.5. The starting scales are matched as later ones are, which the thesis
    leaves open.
    """
    with jax.enable_x64(True):
        data = _Data.of(x, log_joint, stated, prior)
        state, number = _begin(data), int(labelled_points(data.stated).sum())

        def length(state: _State) -> float:
            sizes = len(data.all), number, data.x.shape[1], data.stated.shape[1]
            value = float(_log_likelihood(data, state.prototypes()))
            return prototype_code_length(
                value, *sizes, data.base.shape[1], per_component, state.number
            )

        best, cost = state, length(state)
        path, waited = [(state.number, cost)], 0
        while state.number < most and waited < lookahead:
            if progress is not None:
                progress(state.number)
            grown = _insert(data, state, threshold)
            if grown is None:
                break
            state, waited = grown, waited + 1
            now = length(state)
            if now < cost:
                best, cost, waited = state, now, 0
                path.append((state.number, cost))
        live = best.live
        kept = best.points[live], best.clusters[live], best.classes[live]
        return GrownPrototypes(*kept, best.scale, path)


class _Data(NamedTuple):
    """Data of the growth: labelled rows, and all rows with their responsibilities.

    Rows that state nothing and have no preferred component follow the labelled ones, so that programs are
    shared: their log likelihood is zero.
    """

    x: Array
    base: Array
    stated: Array
    rest: Array
    single: Array
    all: Array
    member: Array
    centre: Array
    precision: Array

    @classmethod
    def of(cls, x: ArrayLike, log_joint: ArrayLike, stated: ArrayLike, prior: Any) -> _Data:
        """Separate the labelled rows."""
        x, log_joint, stated = (np.asarray(v, float) for v in (x, log_joint, stated))
        told = stated.min(axis=1) < stated.max(axis=1)
        if not told.any():
            raise ValueError(
                "no class is known of any row, so that nothing says where classes lie; name some"
            )
        best = stated[told] == stated[told].max(axis=1, keepdims=True)
        single = np.where(best.sum(axis=1) == 1, best.argmax(axis=1), -1)
        around = np.zeros((2, x.shape[1]))
        if prior is not None:
            centre, deviation = (np.asarray(part, float) for part in prior)
            around = np.stack([centre, 1.0 / deviation**2])
        rest = special.logsumexp(log_joint[~told], axis=1).sum()
        member = special.softmax(log_joint, axis=1)
        more = (0, room_for(len(single)) - len(single))
        rows = np.pad(x[told], (more, (0, 0)), mode="edge")
        base = np.pad(log_joint[told], (more, (0, 0)), constant_values=-np.log(log_joint.shape[1]))
        says = np.pad(stated[told], (more, (0, 0)), constant_values=1.0)
        single = np.pad(single, more, constant_values=-1)
        given = rows, base, says, rest, single, x, member, *around
        return cls(*map(jnp.asarray, given))


class _State(NamedTuple):
    """Prototypes so far, in arrays with room for more."""

    points: NDArray
    clusters: NDArray
    classes: NDArray
    live: NDArray
    scale: NDArray
    shares: NDArray

    @property
    def number(self) -> int:
        """Number of prototypes."""
        return int(self.live.sum())

    @jax.jit
    def prototypes(self) -> Prototypes:
        """Prototypes in the form that the model takes."""
        points, clusters, classes, live, scale, shares = map(jnp.asarray, self)
        table = jnp.tile(shares, (len(scale), 1))
        bare = without_prototypes(clusters, len(scale), live)
        return Prototypes(points, classes, clusters, scale, table, bare, live)


@jax.jit
def _log_likelihood(data: _Data, found: Prototypes) -> Array:
    """Return the log likelihood of rows and classes, eq. 2.18."""
    told = data.base + found.log_told(data.x, data.stated)
    return data.rest + logsumexp(told, axis=1).sum()


@jax.jit
def _posterior(data: _Data, found: Prototypes) -> Array:
    """Return posterior probabilities of the components of labelled rows, eq. 2.22."""
    return softmax(data.base + found.log_told(data.x, data.stated), axis=1)


@partial(jax.jit, static_argnames="num_steps")
def _placed(data: _Data, found: Prototypes, free: Array, num_steps: int = _STEPS) -> Array:
    """Return the places of the prototypes that are `free`, by L-BFGS on eq. 2.18 in units of the data."""
    unit = data.all.std(axis=0)
    unit = jnp.where(unit > 0, unit, 1.0)
    start = found.points

    def at(flat: Array) -> Array:
        return jnp.where(free[:, None], start + flat.reshape(start.shape) * unit, start)

    def loss(flat: Array) -> Array:
        points = at(flat)
        pull = jnp.sum(free[:, None] * data.precision * (points - data.centre) ** 2) / 2
        return pull - _log_likelihood(data, found._replace(points=points))

    return at(minimise(loss, jnp.zeros(start.size), num_steps))


def matched_scales(x: ArrayLike, member: ArrayLike, found: Prototypes) -> Array:
    r"""Scales at which the prototypes of a component are as uncertain as those of a mixture there.

    An isotropic mixture with means at the prototypes, one variance and free weights is fitted to the
    points of each component. The scale :math:`a_j` gives the same entropy of the prototype of a point,
    which never rises in the scale. Where no scale does, as for prototypes that coincide, it is
    :math:`1 / (2\sigma^2)`, the root for equal weights. The scale of a component without prototypes changes
    nothing, and is one over the mean squared distance of points and prototypes.

    Parameters
    ----------
    x : array_like, shape (num_points, num_features)
    member : array_like, shape (num_points, num_clusters)
        Responsibilities.
    found : Prototypes

    Returns
    -------
    Array, shape (num_clusters,)

    References
    ----------
    Raghuram (2014), section 2.4.5.
    """
    return _matched(jnp.asarray(x), jnp.asarray(member), found)


@jax.jit
def _matched(x: Array, member: Array, found: Prototypes) -> Array:
    ones = jnp.ones_like(found.scale)
    apart = -found._replace(scale=ones, live=None).log_kernels(x)
    live = jnp.ones(len(found.points), bool) if found.live is None else found.live

    def one(cluster: Array) -> Array:
        own, weight = live & (found.clusters == cluster), member[:, cluster]
        nearest = jnp.min(jnp.where(own, apart, jnp.inf), axis=1, initial=jnp.max(apart))
        size = jnp.maximum(weight.sum(), jnp.finfo(x.dtype).tiny)
        floor = 1e-12 * (jnp.max(jnp.where(own, apart, 0.0)) + jnp.finfo(x.dtype).tiny)
        variance = jnp.maximum(weight @ nearest / size / x.shape[1], floor)

        def step(_: Any, state: tuple[Array, Array]) -> tuple[Array, Array]:
            log_share, variance = state
            prob = _soft(log_share - apart / (2 * variance), own)
            total = jnp.maximum(weight @ prob / size, jnp.finfo(x.dtype).tiny)
            spread = jnp.sum(weight[:, None] * prob * jnp.where(own, apart, 0.0))
            return jnp.log(total), jnp.maximum(spread / size / x.shape[1], floor)

        begin = jnp.zeros(len(own), x.dtype), variance
        log_share, variance = lax.fori_loop(0, 50, step, begin)
        aim = _entropy(_soft(log_share - apart / (2 * variance), own), weight)
        plain = 1.0 / (2.0 * variance)

        def halve(_: Any, ends: tuple[Array, Array]) -> tuple[Array, Array]:
            low, high = ends
            middle = (low + high) / 2
            above = _entropy(_soft(-jnp.exp(middle) * apart, own), weight) > aim
            return jnp.where(above, middle, low), jnp.where(above, high, middle)

        wide = jnp.log(plain) + jnp.log(1e6) * jnp.asarray([-1.0, 1.0])
        low, high = lax.fori_loop(0, 60, halve, (wide[0], wide[1]))
        inside = (low > wide[0]) & (high < wide[1])
        matched = jnp.where(inside, jnp.exp((low + high) / 2), plain)
        return jnp.where(own.any(), matched, 1.0 / jnp.maximum(jnp.mean(apart), floor))

    return lax.map(one, jnp.arange(len(found.scale)))


def _soft(logs: Array, own: Array) -> Array:
    return jnp.where(own, softmax(jnp.where(own, logs, -jnp.inf), axis=1), 0.0)


def _entropy(prob: Array, weight: Array) -> Array:
    return -jnp.sum(weight[:, None] * prob * log_of(prob))


@jax.jit
def _classes_of_components(data: _Data) -> tuple[Array, Array, Array]:
    """Log numbers of rows by component and class, their means, and shares of the classes."""
    stated = data.stated / data.stated.sum(axis=1, keepdims=True)
    share = log_softmax(data.base, axis=1)[:, :, None] + log_of(stated)[:, None]
    share = jnp.where(labelled_points(data.stated)[:, None, None], share, -jnp.inf)
    mean = jnp.einsum("nkc,nd->kcd", softmax(share, axis=0), data.x)
    return logsumexp(share, axis=0), mean, shares_of_classes(data.stated, share.shape[2])


def _begin(data: _Data) -> _State:
    """Return one prototype for each class that a component holds, or the best one if none holds any."""
    log_count, mean, shares = map(np.asarray, _classes_of_components(data))
    held = np.exp(log_count) > _HELD
    held[np.unravel_index(log_count.argmax(), held.shape)] = True
    clusters, classes = np.nonzero(held)
    number = len(clusters)
    more = -(-(number + 1) // _ROOM) * _ROOM - number
    state = _State(
        np.pad(mean[held], ((0, more), (0, 0)), mode="edge"),
        np.pad(clusters, (0, more)),
        np.pad(classes, (0, more)),
        np.arange(number + more) < number,
        np.ones(len(held)),
        shares,
    )
    scale = np.asarray(matched_scales(data.all, data.member, state.prototypes()))
    state = state._replace(scale=scale)
    return state._replace(points=np.asarray(_placed(data, state.prototypes(), state.live)))


def _insert(data: _Data, state: _State, threshold: float) -> _State | None:
    """Add the best labelled point as a prototype; None where there is none to add."""
    found = state.prototypes()
    near = np.asarray(_posterior(data, found)) > threshold
    near &= np.asarray(data.single >= 0)[:, None]
    if not near.any():
        return None
    gain = np.where(near, np.asarray(_gains(data, found)), -np.inf)
    row, cluster = np.unravel_index(np.argmax(gain), gain.shape)
    if state.number == len(state.live):
        wider = [(0, _ROOM)]
        state = state._replace(
            points=np.pad(state.points, [*wider, (0, 0)], mode="edge"),
            clusters=np.pad(state.clusters, wider),
            classes=np.pad(state.classes, wider),
            live=np.pad(state.live, wider),
        )
    place = np.arange(len(state.live)) == state.number
    state = state._replace(
        points=np.where(place[:, None], np.asarray(data.x)[row], state.points),
        clusters=np.where(place, cluster, state.clusters),
        classes=np.where(place, np.asarray(data.single)[row], state.classes),
        live=state.live | place,
    )
    own = state.live & (state.clusters == cluster)
    state = state._replace(points=np.asarray(_placed(data, state.prototypes(), own)))
    scale = np.asarray(matched_scales(data.all, data.member, state.prototypes()))
    at_cluster = np.arange(len(scale)) == cluster
    return state._replace(scale=np.where(at_cluster, scale, state.scale))


@jax.jit
def _gains(data: _Data, found: Prototypes) -> Array:
    """Return the log likelihood with each labelled point as one more prototype of each component."""
    told = found.log_told(data.x, data.stated)
    logs = found.log_kernels(data.x)
    says = logs + log_of(data.stated[:, found.classes])
    single = data.single
    rows = found._replace(points=data.x, clusters=jnp.zeros_like(single), live=None)
    apart = -rows._replace(scale=jnp.ones(1)).log_kernels(data.x)

    def of(cluster: Array) -> Array:
        own = found.clusters == cluster
        below = logsumexp(jnp.where(own, logs, -jnp.inf), axis=1)
        above = logsumexp(jnp.where(own, says, -jnp.inf), axis=1)
        without = logsumexp((data.base + told).at[:, cluster].set(-jnp.inf), axis=1)

        def with_row(row: Array) -> Array:
            kernel = -found.scale[cluster] * apart[:, row]
            said = kernel + log_of(data.stated[:, single[row]])
            new = jnp.logaddexp(above, said) - jnp.logaddexp(below, kernel)
            return jnp.logaddexp(without, data.base[:, cluster] + new).sum()

        return lax.map(with_row, jnp.arange(len(data.x)))

    return lax.map(of, jnp.arange(len(found.scale))).T
