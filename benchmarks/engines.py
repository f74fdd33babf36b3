"""Every engine against posteriors with known answers, those of `tests/reference/posteriors`.

Run: python -m benchmarks.engines
"""

import json

import numpy as np
from arviz_stats.base import array_stats

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


if __name__ == "__main__":
    engines()
