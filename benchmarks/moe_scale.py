"""EM of a mixture with classes against that of the mixture alone: processor seconds per step.

Run: python benchmarks/moe_scale.py [--points 100000] [--features 20] [--components 50] [--share 0.01]
"""

import argparse
import time

import numpy as np

import sidebayes as sb

SHORT, LONG = 2, 7


def seconds(method, x, known, steps, **options):
    """Processor seconds that a fit of so many steps takes: others on the machine do not count."""
    engine = sb.EM(num_restarts=1, max_steps=steps, tol=0.0)
    data = (x,) if known is None else (x, known)
    began = time.process_time()
    sb.fit(method, *data, engine=engine, progress=False, **options)
    return time.process_time() - began


def main():
    """Print seconds per step of both, and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--points", type=int, default=100_000)
    parser.add_argument("--features", type=int, default=20)
    parser.add_argument("--components", type=int, default=50)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--share", type=float, default=0.01)
    parser.add_argument("--repeats", type=int, default=3)
    asked = parser.parse_args()
    rng = np.random.default_rng(0)
    centres = rng.normal(scale=4.0, size=(asked.components, asked.features))
    label = rng.integers(0, asked.components, asked.points)
    x = centres[label] + rng.normal(size=(asked.points, asked.features))
    known = np.where(rng.random(asked.points) < asked.share, label % asked.classes, -1)
    start = {
        "weights": np.full(asked.components, 1 / asked.components),
        "mean": x[rng.choice(asked.points, asked.components, replace=False)],
        "covariance": np.tile(np.eye(asked.features), (asked.components, 1, 1)),
    }
    even = np.full((asked.components, asked.classes), 1 / asked.classes)
    sizes = {"num_clusters": asked.components}
    cases = {
        "gmm": (None, {"init": start, **sizes}),
        "moe": (
            known,
            {"init": start | {"class_table": even}, "num_classes": asked.classes, **sizes},
        ),
    }
    found = {name: [] for name in cases}
    for _ in range(asked.repeats):
        for name, (given, options) in cases.items():
            began = time.perf_counter()
            short, long = (seconds(name, x, given, steps, **options) for steps in (SHORT, LONG))
            found[name].append((short, long))
            print(
                f"{name}: {short:.1f} and {long:.1f} s ({time.perf_counter() - began:.0f} s)",
                flush=True,
            )
    best = {name: np.min(pairs, axis=0) for name, pairs in found.items()}  # least disturbed
    gmm, moe = ((best[name][1] - best[name][0]) / (LONG - SHORT) for name in ("gmm", "moe"))
    print(f"gmm {gmm:.3f}, moe {moe:.3f} s per step; ratio {moe / gmm:.2f}")


if __name__ == "__main__":
    main()
