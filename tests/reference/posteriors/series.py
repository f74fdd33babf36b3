"""Series of posteriordb: a recursion, two hidden Markov chains, two differential equations."""

from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.special import logsumexp
from jax.typing import ArrayLike

from .known import KnownPosterior, entries, moments_of, published

TABLE = Annotated[ArrayLike, "times outputs"]
ONE = Annotated[ArrayLike, "times"]


def arma_11(y: ONE):
    """Autoregression and moving average of order one."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 10.0))
    phi = numpyro.sample("phi", dist.Normal(0.0, 2.0))
    theta = numpyro.sample("theta", dist.Normal(0.0, 2.0))
    sigma = numpyro.sample("sigma", dist.HalfCauchy(2.5))

    def step(error, pair):
        before, now = pair
        expected = mu + phi * before + theta * error
        return now - expected, expected

    _, expected = jax.lax.scan(step, 0.0, (jnp.append(mu, y[:-1]), y))
    numpyro.sample("y", dist.Normal(expected, sigma), obs=y)


class HiddenMarkov(dist.Distribution):
    """Series whose states are summed out by the forward recursion; both states are as likely at first."""

    support = dist.constraints.real_matrix

    def __init__(self, transition, emission, shape):
        self.transition, self.emission = transition, emission
        super().__init__((), shape)

    def log_prob(self, value):
        given_state = self.emission(value)  # (times, states)

        def step(weight, seen):
            return logsumexp(weight[:, None] + jnp.log(self.transition), axis=0) + seen, None

        start = given_state[0] - jnp.log(len(self.transition))
        return logsumexp(jax.lax.scan(step, start, given_state[1:])[0])


def _increasing(name, *priors):
    """Two positive numbers in increasing order; the prior's densities are cut to that region."""
    region = dist.ImproperUniform(dist.constraints.positive_ordered_vector, (), (2,))
    value = numpyro.sample(name, region)
    numpyro.factor(f"prior of {name}", sum(p.log_prob(value[i]) for i, p in enumerate(priors)))
    return value


def _transition(*concentrations):
    rows = [
        numpyro.sample(f"theta{i + 1}", dist.Dirichlet(jnp.asarray(one, float)))
        for i, one in enumerate(concentrations)
    ]
    return jnp.stack(rows)


def drive(series: TABLE):
    """Two exponential series, whose rates depend on a hidden state."""
    transition = _transition((4, 2), (2, 4))
    priors = dist.Normal(0.0, 1.0), dist.Normal(3.0, 1.0)
    phi, rate = _increasing("phi", *priors), _increasing("lambda", *priors)

    def emission(value):
        one = dist.Exponential(phi).log_prob(value[:, :1])
        return one + dist.Exponential(rate).log_prob(value[:, 1:])

    numpyro.sample("series", HiddenMarkov(transition, emission, series.shape), obs=series)


def hidden_means(y: TABLE):
    """Normal series of unit variance, whose mean depends on a hidden state."""
    transition = _transition((1, 1), (1, 1))
    mu = _increasing("mu", dist.Normal(3.0, 1.0), dist.Normal(10.0, 1.0))

    def emission(value):
        return dist.Normal(mu, 1.0).log_prob(value)

    numpyro.sample("y", HiddenMarkov(transition, emission, y.shape), obs=y)


def runge_kutta(slope, start, times, num_steps):
    """Solution of an equation at times after zero, by the classical method of order four."""

    def step(state, place):
        time, size = place
        one = slope(time, state)
        two = slope(time + size / 2, state + size / 2 * one)
        three = slope(time + size / 2, state + size / 2 * two)
        four = slope(time + size, state + size * three)
        return state + size / 6 * (one + 2 * two + 2 * three + four), None

    def interval(state, ends):
        first, last = ends
        size = (last - first) / num_steps
        places = first + size * jnp.arange(num_steps), jnp.full(num_steps, size)
        state, _ = jax.lax.scan(step, state, places)
        return state, state

    before = jnp.append(0.0, times[:-1])
    return jax.lax.scan(interval, start, (before, times))[1]


def lotka_volterra(populations: TABLE, *, first, times):
    """Hares and lynxes: prey and predator in log-normal errors."""
    centre, spread = jnp.array([1.0, 0.05, 1.0, 0.05]), jnp.array([0.5, 0.05, 0.5, 0.05])
    prior = dist.TruncatedNormal(centre, spread, low=0.0).to_event(1)
    theta = numpyro.sample("theta", prior)
    start = numpyro.sample("z_init", dist.LogNormal(jnp.full(2, jnp.log(10.0)), 1.0).to_event(1))
    sigma = numpyro.sample("sigma", dist.LogNormal(jnp.full(2, -1.0), 1.0).to_event(1))

    def slope(_, state):
        prey, predator = state
        grow, eaten, die, feed = theta
        return jnp.array([(grow - eaten * predator) * prey, (feed * prey - die) * predator])

    expected = runge_kutta(slope, start, times, 20)
    numpyro.sample("first", dist.LogNormal(jnp.log(start), sigma).to_event(1), obs=first)
    numpyro.sample("populations", dist.LogNormal(jnp.log(expected), sigma), obs=populations)


def elimination(concentration: ONE, *, times, dose, volume):
    """One compartment: absorption of first order, elimination that saturates (Michaelis and Menten)."""
    names = ("k_a", "K_m", "V_m", "sigma")
    absorb, half, most, sigma = (numpyro.sample(name, dist.HalfCauchy(1.0)) for name in names)

    def slope(time, state):
        taken_up = dose * absorb / volume * jnp.exp(-absorb * time)
        return taken_up - most / volume * state / (half + state)

    expected = runge_kutta(slope, 0.0, times, 40)
    centre = jnp.log(jnp.maximum(expected, 1e-12))
    numpyro.sample("concentration", dist.LogNormal(centre, sigma), obs=concentration)


def _array(data, *names):
    return tuple(np.asarray(data[name], float) for name in names)


def _arma():
    record = published("arma-arma11")
    return _known(arma_11, _array(record["data"], "y"), record)


def _drive():
    record = published("bball_drive_event_0-hmm_drive_0")
    return _known(drive, (np.column_stack(_array(record["data"], "u", "v")),), record)


def _hidden_means():
    record = published("hmm_example-hmm_example")
    return _known(hidden_means, (_array(record["data"], "y")[0][:, None],), record)


def _lotka_volterra():
    record = published("hudson_lynx_hare-lotka_volterra")
    table, first, times = _array(record["data"], "y", "y_init", "ts")
    return _known(lotka_volterra, (table,), record, first=first, times=times)


def _elimination():
    """Variances of two parameters are infinite, so that logarithms are compared."""
    record = published("one_comp_mm_elim_abs-one_comp_mm_elim_abs")
    data = record["data"]
    seen, times = _array(data, "C_hat", "times")
    return KnownPosterior(
        elimination,
        (seen.ravel(),),
        moments_of(record, "reference_log"),
        "published draws",
        {"times": times, "dose": float(data["D"]), "volume": float(data["V"])},
        lambda draws: {f"ln({name})": np.log(value) for name, value in entries(draws).items()},
    )


def _known(model, data, record, **options):
    return KnownPosterior(model, data, moments_of(record), "published draws", options)


POSTERIORS = {
    "arma-arma11": _arma,
    "bball_drive_event_0-hmm_drive_0": _drive,
    "hmm_example-hmm_example": _hidden_means,
    "hudson_lynx_hare-lotka_volterra": _lotka_volterra,
    "one_comp_mm_elim_abs-one_comp_mm_elim_abs": _elimination,
}
