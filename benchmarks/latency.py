"""Seconds that users wait: first fits in a new process, fits to other links, beside peers.

Run: python -m benchmarks.latency [--only fits|draws|peers] [--draws 10]
Every fit runs in a process of its own, first with an empty folder of programs, then with the folder
that it left; imports are not counted. "Programs" were compiled, none of them in a warm process. "JAX" is
a warm process with JAX's own compilation cache instead, which keeps every program however quickly it
was compiled.
PCKMeans needs the `peers` extra.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

FITS = {
    "gmm em": {"method": "gmm", "engine": "em"},
    "ppc em, 60 links, learned": {
        "links": 60,
        "engine": "em",
        "options": {"reading": "relation", "flip_rate": "learned"},
    },
    "ppc em, 60 links": {"links": 60, "engine": "em"},
    "ppc em, 200 hard links": {"links": 200, "hard": True, "engine": "em"},
    "ppc map, 60 links": {"links": 60, "engine": "map"},
    "ppc laplace, 60 links": {"links": 60, "engine": "laplace"},
    "ppc svi, 60 links": {"links": 60, "engine": "svi"},
    "ppc cavi, 60 links": {
        "links": 60,
        "engine": "cavi",
        "options": {"reading": "relation"},
    },
    "ppc gibbs, 60 links": {"links": 60, "engine": "gibbs"},
    "gmm nuts": {"method": "gmm", "engine": "nuts"},
    "ppc nuts, 60 links": {"links": 60, "engine": "nuts"},
    "ppc smc, 60 links": {"links": 60, "engine": "smc"},
}
SHORT = {
    "nuts": {"num_warmup": 50, "num_samples": 50},
    "gibbs": {"num_warmup": 50, "num_samples": 50},
    "smc": {"num_particles": 100},
}
"""Lengths of samplers: what is measured is the wait before they run."""
DRAWS = [
    (data, num_links, kind)
    for kind in ("hard", "belief_propagation")
    for data in ("iris", "wine", "breast_cancer", "digits")
    for num_links in (50, 100, 200, 400)
]


def load(name):
    """Data as in `accuracy_links`: standardised, digits as twenty components."""
    import numpy as np
    from sklearn.decomposition import PCA

    import sidebayes as sb

    data = sb.load_dataset(name)
    x = data.x
    if name == "digits":
        x = PCA(20, random_state=0).fit_transform(x)
    elif name != "iris":
        x = (x - x.mean(axis=0)) / x.std(axis=0)
    return x, data.labels, len(np.unique(data.labels))


def one_fit(method="ppc", links=0, hard=False, engine="em", options=None):
    """Fit once in this process; says what it took beyond imports."""
    import arviz_stats.base  # noqa: F401
    import xarray
    from sidebayes.guides.engines.plumbing.programs import counted_compilations

    import sidebayes as sb
    from sidebayes.runs.zoo import ENGINES, make_engine

    getattr(sb, "Fit")  # noqa: B009, names are imported when they are first used
    xarray.DataArray(0.0)  # imports Dask, where it is installed
    x, labels, num_clusters = load("iris")
    given = {}
    if links:
        strength = {} if hard else {"weight": 2.0, "flip_rate": 0.1}
        given["links"] = sb.simulate_links(labels, links, **strength)
    runner = make_engine(engine)  # imports the engine
    assert engine in ENGINES
    runner = type(runner)(**SHORT.get(engine, {}))
    began, worked = time.perf_counter(), time.process_time()
    with counted_compilations() as names:
        fit = sb.fit(
            method,
            x,
            num_clusters=num_clusters,
            engine=runner,
            progress=False,
            **given,
            **(options or {}),
        )
        fit.labels()
    return {
        "wall": time.perf_counter() - began,
        "cpu": time.process_time() - worked,
        "programs": len(names),
        "run": fit.seconds["run"],
    }


def first_answers():
    """Seconds of the first answers of a fit in this process, most of which compile."""
    import sidebayes as sb

    x, labels, num_clusters = load("iris")
    links = sb.simulate_links(labels, 60, weight=2.0, flip_rate=0.1)
    fit = sb.fit("ppc", x, links, num_clusters=num_clusters, progress=False)
    taken = {}
    answers = {"covariance": lambda: fit.covariance, "predictive": fit.predictive, "plot": fit.plot}
    for name, answer in answers.items():
        began = time.perf_counter()
        answer()
        taken[name] = time.perf_counter() - began
    return taken


def importing():
    """Seconds of the import in a new interpreter, beyond what an empty program takes, least of five."""

    def took(program):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", program], check=True)
        return time.perf_counter() - began

    return {"seconds": min(took("import sidebayes") - took("pass") for _ in range(5))}


def other_links(data, num_links, kind, draws):
    """Fit to one draw of links after another; says what each took, and what was compiled."""
    from sidebayes.guides.engines.plumbing.programs import counted_compilations

    import sidebayes as sb

    x, labels, num_clusters = load(data)
    seconds, programs, exact = [], [], 0
    for seed in range(draws):
        if kind == "hard":
            links, options = sb.simulate_links(labels, num_links, seed=seed), {}
        else:
            links = sb.simulate_links(labels, num_links, seed=seed, weight=2.0, flip_rate=0.1)
            options = {"reading": "relation", "inference": kind}
        began = time.perf_counter()
        with counted_compilations() as names:
            fit = sb.fit("ppc", x, links, num_clusters=num_clusters, progress=False, **options)
            fit.labels(), fit.responsibilities(), fit.status
        seconds.append(time.perf_counter() - began)
        programs.append(names.count("em"))
        exact += fit.approximate is None
    return {"seconds": seconds, "climbs": sum(programs), "compiled": programs, "exact": exact}


def bare_numpyro():
    """Compile and run NUTS of bare NumPyro on the plain mixture, as short as ours."""
    import jax
    import jax.numpy as jnp
    from numpyro.infer import MCMC, NUTS, init_to_value
    from sidebayes.models.gmm import gmm

    import sidebayes as sb

    x, _, num_clusters = load("iris")
    start = sb.fit("gmm", x, num_clusters=num_clusters, progress=False).params
    with jax.enable_x64(True):
        kernel = NUTS(gmm, init_strategy=init_to_value(values=start))
        chains = MCMC(
            kernel,
            num_chains=4,
            chain_method="sequential",
            progress_bar=False,
            num_warmup=50,
            num_samples=50,
        )
        began, worked = time.perf_counter(), time.process_time()
        chains.run(jax.random.key(0), jnp.asarray(x), num_clusters=num_clusters)
        jax.block_until_ready(chains.get_samples())
    return {"wall": time.perf_counter() - began, "cpu": time.process_time() - worked}


def peers():
    """First fits of peers to iris."""
    from sklearn.mixture import GaussianMixture

    import sidebayes as sb

    x, labels, num_clusters = load("iris")
    found = {}
    began = time.perf_counter()
    GaussianMixture(num_clusters, n_init=10, random_state=0).fit(x)
    found["scikit-learn GaussianMixture, 10 starts"] = time.perf_counter() - began
    try:
        from active_semi_clustering.semi_supervised.pairwise_constraints import PCKMeans
    except ImportError:
        return found
    links = sb.simulate_links(labels, 200)
    pairs = links.pairs.tolist()
    same = links.same
    must = [tuple(p) for p, s in zip(pairs, same, strict=True) if s]
    cannot = [tuple(p) for p, s in zip(pairs, same, strict=True) if not s]
    began = time.perf_counter()
    PCKMeans(n_clusters=num_clusters).fit(x, ml=must, cl=cannot)
    found["PCKMeans, 200 links"] = time.perf_counter() - began
    return found


def elsewhere(task, folder, *, by_jax=False, **given):
    """Run a task of this file in a new process; returns what it says."""
    surroundings = dict(os.environ, SIDEBAYES_CACHE="off" if by_jax else folder)
    surroundings.pop("JAX_COMPILATION_CACHE_DIR", None)
    if by_jax:
        surroundings |= {
            "JAX_COMPILATION_CACHE_DIR": folder,
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
    command = [sys.executable, "-m", "benchmarks.latency", "--task", task, json.dumps(given)]
    done = subprocess.run(command, env=surroundings, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"error": done.stderr.strip().splitlines()[-1]}
    return json.loads(done.stdout.splitlines()[-1])


def show_fits():
    """Print the table of first fits, cold and warm."""
    print(
        "| fit of iris | cold s | cpu | programs | warm s | cpu | programs | running | JAX s | cpu |"
    )
    print("| --- " * 10 + "|")
    for name, given in FITS.items():
        with tempfile.TemporaryDirectory() as folder:
            cold, warm = (elsewhere("one_fit", folder, **given) for _ in range(2))
        with tempfile.TemporaryDirectory() as folder:
            _, other = (elsewhere("one_fit", folder, by_jax=True, **given) for _ in range(2))
        if "error" in cold:
            print(f"| {name} | {cold['error']} |", flush=True)
            continue
        figures = [f"{r['wall']:.1f} | {r['cpu']:.1f} | {r['programs']}" for r in (cold, warm)]
        figures += [f"{warm['run']:.1f}", f"{other['wall']:.1f}", f"{other['cpu']:.1f}"]
        print(f"| {name} | {' | '.join(figures)} |", flush=True)


def show_draws(draws, wanted):
    """Print the table of fits to other links."""
    print("| data, links | exact | climbs compiled | first s | later s: median, most |")
    print("| --- | --- | --- | --- | --- |")
    for data, num_links, kind in DRAWS:
        if wanted and data not in wanted:
            continue
        found = elsewhere(
            "other_links", "off", data=data, num_links=num_links, kind=kind, draws=draws
        )
        if "error" in found:
            print(f"| {data}, {num_links} {kind} | {found['error']} |", flush=True)
            continue
        later = [s for s, new in zip(found["seconds"], found["compiled"], strict=True) if not new]
        later = sorted(later) or [float("nan")]
        print(
            f"| {data}, {num_links} {kind} | {found['exact']} of {draws} | {found['climbs']} | "
            f"{found['seconds'][0]:.1f} | {later[len(later) // 2]:.2f}, {later[-1]:.2f} |",
            flush=True,
        )


def show_peers():
    """Print what peers take."""
    for name, seconds in elsewhere("peers", "off").items():
        print(f"{name}: {seconds} s")
    for name, given in (("NumPyro", {}), ("sidebayes", FITS["gmm nuts"])):
        task = "one_fit" if given else "bare_numpyro"
        found = elsewhere(task, "off", **given)
        print(f"NUTS of {name} on gmm, 4 chains of 50 + 50: {found}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=["fits", "draws", "peers"])
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--data", default="", help="data sets for the draws, by commas")
    parser.add_argument("--task", nargs=2, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.task:
        task, given = chosen.task
        print(json.dumps(globals()[task](**json.loads(given))))
        sys.exit()
    if chosen.only in (None, "fits"):
        show_fits()
    if chosen.only in (None, "draws"):
        show_draws(chosen.draws, [name for name in chosen.data.split(",") if name])
    if chosen.only in (None, "peers"):
        show_peers()
