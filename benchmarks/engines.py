"""Every engine against posteriors with known answers, and samplers against bare NumPyro and PyMC.

Run: python -m benchmarks.engines [--only engines|peers]
The answers are those of `tests/reference/posteriors`. In the second part each program draws from one
posterior under one prior, from the mode that EM finds, with as many warm-up steps and draws;
seconds are those of warm-up and sampling together, after compilation. PyMC needs the `peers` extra.
"""

import argparse
import json
import time

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from arviz_stats.base import array_stats
from numpyro.contrib.funsor import config_enumerate
from numpyro.infer import MCMC, init_to_value
from numpyro.infer import NUTS as BareNUTS

import sidebayes as sb
from tests.reference import targets
from tests.reference.make_posteriors import FOLDER

ENGINES = {
    "Laplace": sb.Laplace(),
    "Pathfinder": sb.Pathfinder(),
    "SVI mean field": sb.SVI(guide="mean_field"),
    "SVI full rank": sb.SVI(),
    "CoordinateAscent": sb.CoordinateAscent(),
    "NUTS": sb.NUTS(num_warmup=500, num_samples=500),
    "BlockedGibbs": sb.BlockedGibbs(num_warmup=200, num_samples=1000),
    "SMC": sb.SMC(num_particles=500),
    "NestedSlice": sb.NestedSlice(num_live=300, num_delete=60, num_samples=500),
}
WARMUP, DRAWS, CHAINS = 500, 1000, 4
NUM_CLUSTERS, WEIGHT, PAIRS = 3, 2.0, 30


def effective(values):
    """Least bulk ESS of label-invariant functionals, each of shape (chain, draw)."""
    sizes = [array_stats.ess(v, chain_axis=0, draw_axis=1) for v in values if v.std() > 1e-12]
    return float(min(sizes))


def accuracy(fit, name):
    """ESS; largest error of a mean in sd; ratio of sd farthest from 1; error of the log evidence."""
    record = json.loads((FOLDER / f"{name}.json").read_text())
    exact = record["exact"]["functionals"]
    sampled = (record["sampled"] or {}).get("functionals", {})
    sites = {key: value.to_numpy() for key, value in fit.tree["posterior"].data_vars.items()}
    prob = fit.tree["responsibilities"]["prob"].to_numpy()
    values = targets.functionals(name, sites)
    size = effective(values.values())
    values |= targets.label_functionals(name, prob)
    errors, ratios = [], []
    for key, value in values.items():
        sd = exact[key]["sd"] or sampled[key]["sd"]
        errors.append(abs(value.mean() - exact[key]["mean"]) / sd)
        ratios.append(value.std() / sd)
    ratio = max(ratios, key=lambda r: abs(np.log(max(r, 1e-9))))
    found = fit.log_evidence
    gap = np.nan if found is None else found.value - record["exact"]["log_evidence"]
    return size, max(errors), ratio, gap


def engines():
    head = ("engine", "compile s", "run s", "ESS", "ESS/s", "mean off", "sd ratio", "log Z off")
    for name in targets.EXAMPLE.POSTERIORS:
        print(f"\n{name}\n{head[0]:<17}" + "".join(f"{h:>10}" for h in head[1:]))
        args, given = targets.posterior(name)
        for title, engine in ENGINES.items():
            try:
                fit = sb.fit(*args, engine=engine, seed=1, progress=False, **given)
            except ValueError as error:
                print(f"{title:<17}   does not apply: {str(error).split(':')[0]}")
                continue
            size, mean, ratio, gap = accuracy(fit, name)
            spent = fit.seconds
            print(
                f"{title:<17}{spent['compile']:10.1f}{spent['run']:10.2f}{size:10.0f}"
                f"{size / spent['run']:10.0f}{mean:10.2f}{ratio:10.2f}{gap:10.2f}"
                f"  {fit.verdict[0]}",
                flush=True,
            )


def iris(num_pairs):
    """Data, pairs that share no point, the prior, and the mode of EM, where all start."""
    data = sb.load_dataset("iris")
    rng = np.random.default_rng(0)
    pairs = rng.permutation(len(data.x))[: 2 * num_pairs].reshape(-1, 2)
    same = data.labels[pairs[:, 0]] == data.labels[pairs[:, 1]]
    weights = np.where(same, WEIGHT, -WEIGHT)
    spread = np.diag(data.x.var(axis=0)) / 2
    prior = sb.GaussianPrior(data.x.mean(axis=0), shrinkage=0.1, df=6.0, scale=spread)
    given = {
        "x": data.x,
        "links": sb.Links(pairs, weights, len(data.x)),
        "num_clusters": NUM_CLUSTERS,
        "covariance": "diagonal",
        "prior": prior,
        "reading": "relation",
    }
    mode = sb.fit("ppc", progress=False, **given).params
    return given, mode


def functionals_of_mixture(weights, mean, variance):
    ordered = np.sort(np.asarray(weights), axis=-1)
    parts = (ordered, np.asarray(mean).mean(axis=2), np.log(np.asarray(variance)).mean(axis=2))
    return np.moveaxis(np.concatenate(parts, axis=2), 2, 0)


def ours(engine, given, mode):
    fit = sb.fit("ppc", engine=engine, init=mode, seed=1, progress=False, **given)
    sites = [fit.tree["posterior"][name].to_numpy() for name in ("weights", "mean", "variance")]
    return sites, fit.seconds["compile"], fit.seconds["run"]


@config_enumerate
def bare_model(x, pairs, link_weights, prior):
    """The same mixture as a user of NumPyro writes it: labels enumerated, in plates."""
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(NUM_CLUSTERS)))
    with numpyro.plate("clusters", NUM_CLUSTERS):
        rate = jnp.diag(prior.scale) / 2
        gamma = dist.InverseGamma(jnp.full(rate.shape, prior.df / 2), rate).to_event(1)
        variance = numpyro.sample("variance", gamma)
        centre = dist.Normal(prior.mean, jnp.sqrt(variance / prior.shrinkage)).to_event(1)
        mean = numpyro.sample("mean", centre)

    def density(z):
        return dist.Normal(mean[z], jnp.sqrt(variance[z])).to_event(1)

    alone = np.setdiff1d(np.arange(len(x)), pairs)
    with numpyro.plate("alone", len(alone)):
        z = numpyro.sample("z", dist.Categorical(weights))
        numpyro.sample("x", density(z), obs=x[alone])
    if len(pairs):
        with numpyro.plate("pairs", len(pairs)):
            first = numpyro.sample("first", dist.Categorical(weights))
            second = numpyro.sample("second", dist.Categorical(weights))
            numpyro.sample("x_first", density(first), obs=x[pairs[:, 0]])
            numpyro.sample("x_second", density(second), obs=x[pairs[:, 1]])
            numpyro.factor("statement", jnp.where(first == second, link_weights, 0.0))


def bare_numpyro(given, mode):
    links = given["links"]
    args = jnp.asarray(given["x"]), links.pairs, jnp.asarray(links.weights), given["prior"]
    kernel = BareNUTS(bare_model, init_strategy=init_to_value(values=mode))
    sampler = MCMC(
        kernel,
        num_warmup=WARMUP,
        num_samples=DRAWS,
        num_chains=CHAINS,
        chain_method="sequential",
        progress_bar=False,
    )
    spent = []
    for seed in (0, 1):  # the second run compiles nothing
        began = time.perf_counter()
        sampler.run(jax.random.key(seed), *args)
        draws = jax.block_until_ready(sampler.get_samples(group_by_chain=True))
        spent.append(time.perf_counter() - began)
    sites = [np.asarray(draws[name]) for name in ("weights", "mean", "variance")]
    return sites, spent[0] - spent[1], spent[1]


def pymc(given, mode):
    """Labels summed out by hand, as PyMC's own mixtures do."""
    import pymc as pm
    import pytensor.tensor as pt

    x, links, prior = given["x"], given["links"], given["prior"]
    num_features = x.shape[1]
    shape = NUM_CLUSTERS, num_features
    alone = np.setdiff1d(np.arange(len(x)), links.pairs)
    with pm.Model():
        weights = pm.Dirichlet("weights", np.ones(NUM_CLUSTERS))
        rate = np.diag(np.asarray(prior.scale)) / 2
        variance = pm.InverseGamma("variance", prior.df / 2, rate, shape=shape)
        centre = np.asarray(prior.mean)
        mean = pm.Normal("mean", centre, pt.sqrt(variance / prior.shrinkage), shape=shape)
        each = pm.logp(pm.Normal.dist(mean, pt.sqrt(variance)), x[:, None, :]).sum(axis=2)
        joint = each + pt.log(weights)
        pm.Potential("alone", pt.logsumexp(joint[alone], axis=1).sum())
        if len(links):
            first, second = (joint[links.pairs[:, end]] for end in (0, 1))
            agree = np.eye(NUM_CLUSTERS) * links.weights[:, None, None]
            both = first[:, :, None] + second[:, None, :] + agree
            pm.Potential("pairs", pt.logsumexp(both.reshape((len(links), -1)), axis=1).sum())
        start = {name: mode[name] for name in ("weights", "mean", "variance")}
        began = time.perf_counter()
        found = pm.sample(
            DRAWS, tune=WARMUP, chains=CHAINS, initvals=start, init="adapt_diag",
            progressbar=False, random_seed=1, compute_convergence_checks=False,
        )  # fmt: skip
        spent = time.perf_counter() - began
    run = found.posterior.attrs["sampling_time"]
    sites = [found.posterior[name].to_numpy() for name in ("weights", "mean", "variance")]
    return sites, spent - run, run


def peers():
    nuts = sb.NUTS(num_warmup=WARMUP, num_samples=DRAWS, num_chains=CHAINS)
    gibbs = sb.BlockedGibbs(num_warmup=WARMUP, num_samples=DRAWS, num_chains=CHAINS)
    runs = {
        "ours: BlockedGibbs": lambda *given: ours(gibbs, *given),
        "ours: NUTS": lambda *given: ours(nuts, *given),
        "NumPyro, funsor": bare_numpyro,
        "PyMC": pymc,
    }
    for title, num_pairs in (("mixture without links", 0), ("mixture with 30 linked pairs", PAIRS)):
        print(f"\n{title} (iris, three clusters, diagonal covariances)")
        print(
            f"{'':<20}{'compile s':>10}{'run s':>10}{'ESS':>10}{'ESS/s':>10}   mean of log variances"
        )
        given = iris(num_pairs)
        speed = {}
        for name, run in runs.items():
            try:
                sites, compiling, spent = run(*given)
            except ImportError as error:
                print(f"{name:<20} not installed ({error})")
                continue
            values = functionals_of_mixture(*sites)
            size = effective(values)
            speed[name] = size / spent
            print(
                f"{name:<20}{compiling:10.1f}{spent:10.2f}{size:10.0f}{size / spent:10.1f}"
                f"   {np.round(values[-4:].mean(axis=(1, 2)), 2)}",
                flush=True,
            )
        for peer in list(speed)[2:]:
            ratios = ", ".join(f"{k} {speed[k] / speed[peer]:.1f}" for k in list(speed)[:2])
            print(f"ESS/s over {peer}: {ratios}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=("engines", "peers"))
    only = parser.parse_args().only
    if only != "peers":
        engines()
    if only != "engines":
        with jax.enable_x64(True):
            peers()
