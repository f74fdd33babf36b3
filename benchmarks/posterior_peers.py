"""Effective draws per second on posteriors with known moments: our NUTS, NumPyro's and nutpie's.

Run: python -m benchmarks.posterior_peers [--posteriors NAME,...] [--seeds 3]
Needs the extra `peers`; posteriors of posteriordb need SIDEBAYES_DATA. All draw from one NumPyro model,
nutpie through the function of its density that JAX compiled, and, where the model is written below in PyMC
too, by numba. They start at one draw of the posterior, with as many chains, warm-up steps and draws. Seconds
are of processor time, of warm-up and sampling together, without compilation; in brackets is the ratio of
ours. A star marks draws whose means miss the truth by more than .3 standard deviations.
"""

import argparse
import time
import warnings

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from numpyro.infer import MCMC, init_to_value
from numpyro.infer import NUTS as BareNUTS
from numpyro.infer.util import initialize_model, unconstrain_fn
from sidebayes.guides.engines.problem.density import abstract_trace, latent_sites

import sidebayes as sb
from benchmarks.sampler_peers import effective
from tests.reference.posteriors import EXACT, PUBLISHED, regressions

SIZE = {"num_warmup": 1000, "num_samples": 1000, "num_chains": 2}
NUTS = sb.NUTS(**SIZE)
WRONG = 0.3
"""Error of a mean, in standard deviations, from which draws are not those of the posterior."""


def timed(run, *given):
    began = time.process_time()
    return run(*given), time.process_time() - began


def fit_of(known, sampler):
    return sb.fit(known.model, *known.data, engine=sampler, progress=False, **known.options)


def start_of(known):
    """The draw at which all start."""
    fit = fit_of(known, NUTS)
    draws, sites = fit.tree["posterior"], latent_sites(abstract_trace(fit.run.problem))
    return {name: draws[name].to_numpy()[0, -1] for name in sites}


def ours(sampler):
    """Draws and seconds by seed."""

    def run(known, seeds, start):
        try:
            problem = fit_of(known, sampler).run.problem
        except ValueError:  # of MCLMC, which refuses a single coordinate
            return None
        runs = []
        for seed in seeds:
            found, spent = timed(
                lambda seed=seed: sampler.run(problem, init=start, seed=seed, progress=False)
            )
            runs.append((found.draws, spent))
        return runs

    return run


def bare(known, seeds, start):
    kernel = BareNUTS(known.model, init_strategy=init_to_value(values=start))
    sampler = MCMC(kernel, **SIZE, chain_method="sequential", progress_bar=False)

    def run(seed):
        sampler.run(jax.random.key(seed), *known.data, **known.options)
        return jax.tree.map(np.asarray, sampler.get_samples(group_by_chain=True))

    run(0)  # compiles
    return [timed(run, seed) for seed in seeds]


def nutpie(model, seeds, describe, **settings):
    """Draws and seconds by seed of a model compiled for nutpie."""
    import nutpie as package

    settings |= {"tune": SIZE["num_warmup"], "chains": SIZE["num_chains"], "cores": 1}
    settings["progress_bar"] = False
    package.sample(model, draws=1, **settings | {"tune": 1})
    runs = []
    for seed in seeds:
        trace, spent = timed(
            lambda seed=seed: package.sample(
                model, draws=SIZE["num_samples"], seed=seed, **settings
            )
        )
        runs.append((describe(trace.posterior), spent))
    return runs


def nutpie_jax(known, seeds, start):
    """Through the function that JAX compiled, which nutpie calls in Python."""
    from nutpie.compiled_pyfunc import from_pyfunc

    model = known.model, known.data, known.options
    found = initialize_model(
        jax.random.key(0), model[0], model_args=model[1], model_kwargs=model[2]
    )
    flat, unravel = ravel_pytree(unconstrain_fn(*model, start))
    density = jax.jit(jax.value_and_grad(lambda point: -found.potential_fn(unravel(point))))

    def log_density():
        def at(point):
            value, slope = density(point)
            return float(value), np.asarray(slope)

        return at

    def expand(*_):
        return lambda point: {"point": point}

    compiled = from_pyfunc(
        len(flat),
        log_density,
        expand,
        [np.dtype(float)],
        [(len(flat),)],
        ["point"],
        make_initial_point_fn=lambda _: np.asarray(flat),
    )
    constrain = jax.jit(jax.vmap(jax.vmap(lambda point: found.postprocess_fn(unravel(point)))))

    def describe(posterior):
        points = jnp.asarray(posterior["point"].to_numpy())
        return jax.tree.map(np.asarray, constrain(points))

    return nutpie(compiled, seeds, describe)


def nutpie_numba(known, seeds, start, **settings):
    """The same model in PyMC, compiled by numba, where it is written below; else None."""
    if known.model not in IN_PYMC:
        return None
    import nutpie as package
    import pymc as pm

    with pm.Model() as model:
        IN_PYMC[known.model](pm, *known.data, **known.options)
    names = [variable.name for variable in model.free_RVs]
    first = {name: start[name] for name in names}
    compiled = package.compile_pymc_model(model, initial_points=first, jitter_rvs=set())

    def describe(found):
        return {name: found[name].to_numpy() for name in names}

    return nutpie(compiled, seeds, describe, **settings)


def regression_in_pymc(pm, columns, response, *, centre=None, spread=None, scale=None):
    size = columns.shape[1]
    if centre is None:
        beta = pm.Flat("beta", shape=size)
    else:
        beta = pm.Normal("beta", centre, spread, shape=size)
    kinds = {"HalfCauchy": pm.HalfCauchy, "HalfNormal": pm.HalfNormal}
    if scale is None:
        sigma = pm.HalfFlat("sigma")
    else:
        sigma = kinds[type(scale).__name__]("sigma", float(scale.scale))
    pm.Normal("response", columns @ beta, sigma, observed=response)


def schools_in_pymc(pm, y, *, error, scale):
    mu = pm.Normal("mu", 0.0, 5.0)
    tau = pm.HalfCauchy("tau", scale)
    theta = pm.Normal("theta", mu, tau, shape=len(y))
    pm.Normal("y", theta, error, observed=y)


def bent_in_pymc(pm, y):
    first = pm.Normal("first", 0.0, 1.0)
    second = pm.Normal("second", 0.0, 3.0)
    pm.Normal("y", second - first**2, 0.1, observed=y)


def slopes_in_pymc(pm, columns, y):
    beta = pm.Normal("beta", 0.0, 3.0, shape=columns.shape[1])
    pm.Normal("y", columns @ beta, 1.0, observed=y)


def tailed_in_pymc(pm, y):
    theta = pm.StudentT("theta", nu=2.0, mu=0.0, sigma=1.0)
    pm.StudentT("y", nu=1.0, mu=theta, sigma=3.0, observed=y)


IN_PYMC = {
    regressions.regression: regression_in_pymc,
    EXACT["eight_schools"]().model: schools_in_pymc,
    EXACT["banana"]().model: bent_in_pymc,
    EXACT["collinear"]().model: slopes_in_pymc,
    EXACT["heavy_tails"]().model: tailed_in_pymc,
}


def speed(known, runs):
    """Median of effective draws per second, and whether the draws are of this posterior."""
    rates, wrong = [], False
    for draws, spent in runs:
        values = [value for value in known.functionals(draws).values() if value.std() > 0]
        rates.append(effective(values) / spent)
        wrong |= known.errors(draws)[0] > WRONG
    return float(np.median(rates)), wrong


def nutpie_low_rank(known, seeds, start):
    return nutpie_numba(known, seeds, start, low_rank_modified_mass_matrix=True)


PROGRAMS = {
    "ours, low rank": ours(sb.NUTS(**SIZE, dense_mass="low_rank")),
    "ours, MCLMC": ours(sb.MCLMC(**SIZE)),
    "NumPyro": bare,
    "nutpie, JAX": nutpie_jax,
    "nutpie, numba": nutpie_numba,
    "nutpie, low rank": nutpie_low_rank,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--posteriors", default="", help="names, or beginnings, comma-separated")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--programs", default=";".join(PROGRAMS), help="names, with ; between")
    asked = parser.parse_args()
    if asked.seeds < 1:
        parser.error(f"--seeds {asked.seeds}: expected at least 1")
    seeds = range(1, asked.seeds + 1)
    if unknown := set(asked.programs.split(";")) - set(PROGRAMS):
        parser.error(f"--programs {';'.join(unknown)}: there are {'; '.join(PROGRAMS)}")
    programs = {title: PROGRAMS[title] for title in asked.programs.split(";")}
    names = [
        name for name in EXACT | PUBLISHED if name.startswith(tuple(asked.posteriors.split(",")))
    ]
    if not names:
        parser.error(f"--posteriors {asked.posteriors}: no posterior begins so")
    print(f"{'posterior':<46}{'NUTS':>9}" + "".join(f"{title:>22}" for title in programs))
    ratios = {title: [] for title in programs}
    for name in names:
        known = (EXACT | PUBLISHED)[name]()
        given = *known.data, *known.options.values()
        if isinstance(known.model, str) or any(isinstance(one, sb.Links) for one in given):
            continue  # models with links are those of `benchmarks.sampler_peers`
        start = start_of(known)
        own, wrong = speed(known, ours(NUTS)(known, seeds, start))
        line = f"{name:<46}{own:9.0f}{'*' if wrong else ' '}"
        for title, program in programs.items():
            runs = program(known, seeds, start)
            if runs is None:
                line += f"{'':>22}"
                continue
            rate, wrong = speed(known, runs)
            ratios[title].append(own / rate)
            line += f"{rate:11.0f}{'*' if wrong else ' '}({own / rate:7.2f})"
        print(line, flush=True)
    for title, found in ratios.items():
        if found:
            middle = np.exp(np.log(found).mean())
            print(f"NUTS over {title}: {middle:.1f} in the geometric mean, least {min(found):.2f}")


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)  # in the threads of nutpie, too
    warnings.simplefilter("ignore")
    main()
