"""Gaussian-process classifier on a sparse graph of many points: seconds and memory.

Asked: 20,000 points in a minute on two cores, compiling left out.

Run: python benchmarks/pairwise_gp_scale.py [--points 20000] [--pairs 200]
"""

import argparse
import resource
import time

from sidebayes.diagnostics.trust.scores import accuracy

import sidebayes as sb


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--points", type=int, default=20_000)
    parser.add_argument("--pairs", type=int, default=200)
    options = parser.parse_args()
    data = sb.load_dataset("two_spirals", num_points=options.points)
    links = sb.simulate_links(data.labels, options.pairs, flip_rate=0.1, weight=2.2, seed=0)
    began = time.perf_counter()
    sb.GraphKernel.build(data.x)
    built = time.perf_counter() - began
    began = time.perf_counter()
    kernel = sb.choose_graph_kernel(data.x, links)
    chosen = time.perf_counter() - began
    features = kernel.features()
    began = time.perf_counter()
    fit = sb.fit("pairwise_gp", features, links, num_clusters=2, progress=False)
    fitted = time.perf_counter() - began - fit.seconds["compile"]
    new = sb.load_dataset("two_spirals", num_points=2000, seed=1)
    began = time.perf_counter()
    found = fit.predict(kernel.features(new.x))
    print(
        f"{options.points} points, {len(links)} pairs, a tenth wrong; {features.shape[1]} features"
    )
    print(f"one kernel, as given: {built:.1f} s; with its fit {built + fitted:.1f} s")
    print(f"kernel chosen among 21: {chosen:.1f} s")
    print(f"fit: {fitted:.1f} s and {fit.seconds['compile']:.1f} s to compile")
    print(f"2000 new points: {time.perf_counter() - began:.1f} s")
    own, other = accuracy(data.labels, fit.labels()), accuracy(new.labels, found)
    print(f"accuracy {own:.3f}, of new points {other:.3f}")
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"peak memory {memory:.2f} GiB")


if __name__ == "__main__":
    main()
