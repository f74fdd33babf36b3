"""Chains of `trajectories` on forty points of two sinusoids with twenty links of log-odds 10.

``python benchmarks/reproduce/trajectories_chains.py [nuts|gibbs] [--learned]`` prints R-hat and effective
draws of what does not depend on numbers of clusters, by the defaults of the engine; with ``--learned``
length-scale, amplitude and noise are drawn as well.
"""

from __future__ import annotations

import sys
import time

from sidebayes.diagnostics.symmetry.invariants import convergence

import sidebayes as sb


def main(engine: str, *, learned: bool) -> None:
    """Draw, and print how the chains agree."""
    table = sb.simulate_sinusoids(20, seed=0)
    links = sb.simulate_links(table["curve"], 20, weight=10.0)
    scales = {} if learned else {"length_scale": 14.1, "amplitude": 1.0, "noise": 0.14}
    cpu = time.process_time()
    fit = sb.fit(
        "trajectories", table["y"], table["x"], links=links, num_clusters=5, engine=engine, progress=False,
        **scales,
    )  # fmt: skip
    cpu = time.process_time() - cpu
    found = convergence(fit.tree)
    print(
        f"{engine} {'learned' if learned else 'given'} scales: R-hat {found['rhat']:.4f}, "
        f"effective draws {found['ess']:.0f}; start {fit.seconds['search']:.0f} s, sampling "
        f"{fit.seconds['run']:.0f} s, all CPU {cpu:.0f} s\n{fit.status}"
    )
    if learned:
        print(fit.summary().loc[["length_scale", "amplitude", "noise"]].to_string())


if __name__ == "__main__":
    chosen = [one for one in sys.argv[1:] if not one.startswith("--")]
    for one in chosen or ["nuts", "gibbs"]:
        main(one, learned="--learned" in sys.argv)
