"""Effective draws per second of linked mixtures: our samplers, bare NumPyro, PyMC and nutpie.

Run: python -m benchmarks.sampler_peers [--data iris,wine,breast_cancer,digits] [--pairs 0,60]
Needs the extra `peers`. Every program draws from the same posterior under the same prior, from the
mode that EM finds, with as many chains, warm-up steps and draws. Seconds are of processor time, of
warm-up and sampling together, without compilation.
"""

import argparse
import resource
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from arviz_stats.base import array_stats
from numpyro.contrib.funsor import config_enumerate
from numpyro.infer import MCMC, init_to_value
from numpyro.infer import NUTS as BareNUTS
from sklearn.decomposition import PCA

import sidebayes as sb

CLUSTERS = {"iris": 3, "wine": 3, "breast_cancer": 2, "digits": 10}
WEIGHT = 2.0
SITES = "weights", "mean", "variance"


def processor():
    """Seconds of this process and of those that it started and that have ended."""
    spent = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(use.ru_utime + use.ru_stime for use in spent)


def features(name):
    """The rows, and their classes: iris raw, digits on 20 principal components, others standardised."""
    data = sb.load_dataset(name)
    x = np.asarray(data.x, float)
    if name == "digits":
        return PCA(20, random_state=0).fit_transform(x), data.labels
    return (x if name == "iris" else (x - x.mean(axis=0)) / x.std(axis=0)), data.labels


def linked(name, num_pairs):
    """Data, pairs that share no point, the prior, and the mode of EM, where all start."""
    x, labels = features(name)
    pairs = np.random.default_rng(0).permutation(len(x))[: 2 * num_pairs].reshape(-1, 2)
    same = labels[pairs[:, 0]] == labels[pairs[:, 1]]
    spread = np.diag(x.var(axis=0)) / 2
    given = {
        "x": x,
        "links": sb.Links(pairs, np.where(same, WEIGHT, -WEIGHT), len(x)),
        "num_clusters": CLUSTERS[name],
        "covariance": "diagonal",
        "prior": sb.GaussianPrior(x.mean(axis=0), shrinkage=0.1, df=x.shape[1] + 2.0, scale=spread),
        "reading": "relation",
    }
    return given, sb.fit("ppc", progress=False, **given).params


def functionals(weights, mean, variance):
    """What no numbering of clusters changes, arrays of (functional, chain, draw)."""
    ordered = np.sort(np.asarray(weights), axis=-1)
    parts = (ordered, np.asarray(mean).mean(axis=2), np.log(np.asarray(variance)).mean(axis=2))
    return np.moveaxis(np.concatenate(parts, axis=2), 2, 0)


def effective(values):
    """Least bulk ESS."""
    return min(float(array_stats.ess(value, chain_axis=0, draw_axis=1)) for value in values)


def ours(engine, **settings):
    def run(given, mode, size):
        length = {"num_warmup": size.warmup, "num_samples": size.draws, "num_chains": size.chains}
        sampler = engine(**length, **settings)
        problem = sb.fit("ppc", engine="em", init=mode, progress=False, **given).run.problem
        sampler.run(problem, init=mode, seed=0, progress=False)  # compiles
        for seed in size.seeds:
            began = processor()
            found = sampler.run(problem, init=mode, seed=seed, progress=False)
            spent = processor() - began
            yield [found.draws[name] for name in SITES], spent

    return run


def sites_of(prior, num_clusters):
    """The sites of a NumPyro model with this prior."""
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(num_clusters)))
    with numpyro.plate("clusters", num_clusters):
        rate = jnp.diag(prior.scale) / 2
        gamma = dist.InverseGamma(jnp.full(rate.shape, prior.df / 2), rate).to_event(1)
        variance = numpyro.sample("variance", gamma)
        centre = dist.Normal(prior.mean, jnp.sqrt(variance / prior.shrinkage)).to_event(1)
        mean = numpyro.sample("mean", centre)
    return weights, mean, variance


@config_enumerate
def enumerated(x, pairs, link_weights, prior, num_clusters):
    """The mixture as NumPyro's documentation teaches it: labels enumerated, in plates."""
    weights, mean, variance = sites_of(prior, num_clusters)

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


def summed(x, pairs, link_weights, prior, num_clusters):
    """The same with labels summed out by hand, as an expert writes it."""
    weights, mean, variance = sites_of(prior, num_clusters)
    each = dist.Normal(mean, jnp.sqrt(variance)).log_prob(x[:, None, :]).sum(axis=2)
    joint = each + jnp.log(weights)
    alone = np.setdiff1d(np.arange(len(x)), pairs)
    numpyro.factor("alone", jax.nn.logsumexp(joint[alone], axis=1).sum())
    if len(pairs):
        agree = jnp.eye(num_clusters) * link_weights[:, None, None]
        both = joint[pairs[:, 0], :, None] + joint[pairs[:, 1], None, :] + agree
        numpyro.factor("pairs", jax.nn.logsumexp(both, axis=(1, 2)).sum())


def numpyro_with(model):
    def run(given, mode, size):
        links = given["links"]
        args = jnp.asarray(given["x"]), links.pairs, jnp.asarray(links.weights), given["prior"]
        kernel = BareNUTS(model, init_strategy=init_to_value(values=mode))
        sampler = MCMC(
            kernel,
            num_warmup=size.warmup,
            num_samples=size.draws,
            num_chains=size.chains,
            chain_method="sequential",
            progress_bar=False,
        )
        for seed in (0, *size.seeds):
            began = processor()
            sampler.run(jax.random.key(seed), *args, given["num_clusters"])
            draws = jax.block_until_ready(sampler.get_samples(group_by_chain=True))
            spent = processor() - began
            if seed:  # the first run compiles
                yield [np.asarray(draws[name]) for name in SITES], spent

    return run


def pymc_model(given):
    """The mixture in PyMC, its labels summed out by hand."""
    import pymc as pm
    import pytensor.tensor as pt

    x, links, prior, num_clusters = (given[k] for k in ("x", "links", "prior", "num_clusters"))
    shape = num_clusters, x.shape[1]
    alone = np.setdiff1d(np.arange(len(x)), links.pairs)
    with pm.Model() as model:
        weights = pm.Dirichlet("weights", np.ones(num_clusters))
        rate = np.diag(np.asarray(prior.scale)) / 2
        variance = pm.InverseGamma("variance", prior.df / 2, rate, shape=shape)
        centre = np.asarray(prior.mean)
        mean = pm.Normal("mean", centre, pt.sqrt(variance / prior.shrinkage), shape=shape)
        each = pm.logp(pm.Normal.dist(mean, pt.sqrt(variance)), x[:, None, :]).sum(axis=2)
        joint = each + pt.log(weights)
        pm.Potential("alone", pt.logsumexp(joint[alone], axis=1).sum())
        if len(links):
            first, second = (joint[links.pairs[:, end]] for end in (0, 1))
            agree = np.eye(num_clusters) * links.weights[:, None, None]
            both = first[:, :, None] + second[:, None, :] + agree
            pm.Potential("pairs", pt.logsumexp(both.reshape((len(links), -1)), axis=1).sum())
    return model


def draws_of(found):
    return [found.posterior[name].to_numpy() for name in SITES]


def pymc(given, mode, size):
    import pymc as pm

    start = {name: np.asarray(mode[name]) for name in SITES}
    with pymc_model(given):
        for seed in (0, *size.seeds):
            began = processor()
            found = pm.sample(
                size.draws if seed else 1, tune=size.warmup, chains=size.chains, cores=1,
                initvals=start, init="adapt_diag", progressbar=False, random_seed=seed,
                nuts_sampler="pymc", compute_convergence_checks=False,
            )  # fmt: skip
            whole = processor() - began
            if seed:  # the first run compiles
                yield draws_of(found), min(whole, found.posterior.attrs["sampling_time"])


def nutpie(given, mode, size, **settings):
    import nutpie as package

    start = {name: np.asarray(mode[name]) for name in SITES}
    compiled = package.compile_pymc_model(pymc_model(given), initial_points=start, jitter_rvs=set())
    settings |= {"tune": size.warmup, "chains": size.chains, "progress_bar": False, "cores": 1}
    package.sample(compiled, draws=1, **settings | {"tune": 1})
    for seed in size.seeds:
        began = processor()
        found = package.sample(compiled, draws=size.draws, seed=seed, **settings)
        yield draws_of(found), processor() - began


PROGRAMS = {
    "ours: NUTS": ours(sb.NUTS),
    "ours: NUTS, low rank": ours(sb.NUTS, dense_mass="low_rank"),
    "ours: MCLMC": ours(sb.MCLMC),
    "ours: BlockedGibbs": ours(sb.BlockedGibbs),
    "NumPyro, enumerated": numpyro_with(enumerated),
    "NumPyro, summed": numpyro_with(summed),
    "PyMC": pymc,
    "nutpie": nutpie,
    "nutpie, low rank": partial(nutpie, low_rank_modified_mass_matrix=True),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default=",".join(CLUSTERS))
    parser.add_argument("--pairs", default="0,60")
    parser.add_argument("--warmup", type=int, default=500)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--chains", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=3, help="runs, whose medians are shown")
    parser.add_argument("--programs", default=";".join(PROGRAMS), help="names, with ; between")
    size = parser.parse_args()
    size.seeds = range(1, size.seeds + 1)
    for name in size.data.split(","):
        for num_pairs in map(int, size.pairs.split(",")):
            given, mode = linked(name, num_pairs)
            print(f"\n{name}: {given['x'].shape}, {CLUSTERS[name]} clusters, {num_pairs} pairs")
            print(f"{'':<22}{'cpu s':>9}{'ESS':>7}{'ESS/s':>9}   mean of log variances")
            speed = {}
            for title in size.programs.split(";"):
                try:
                    runs = list(PROGRAMS[title](given, mode, size))
                except ImportError as error:
                    print(f"{title:<22} not installed ({error})")
                    continue
                values = [functionals(*sites) for sites, _ in runs]
                seconds = np.array([spent for _, spent in runs])
                least = np.array([effective(one) for one in values])
                speed[title] = np.median(least / seconds)
                spread = np.mean([one[-CLUSTERS[name] :].mean() for one in values])
                print(
                    f"{title:<22}{np.median(seconds):9.2f}{np.median(least):7.0f}"
                    f"{speed[title]:9.2f}   {spread:.3f}",
                    flush=True,
                )
            own = {k: v for k, v in speed.items() if k.startswith("ours")}
            for title in own:
                ratios = (f"{k} {own[title] / v:.1f}" for k, v in speed.items() if k not in own)
                print(f"{title} over: {', '.join(ratios)}")


if __name__ == "__main__":
    with jax.enable_x64(True):
        main()
