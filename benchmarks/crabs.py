"""Which grouping of the crabs links decide for: species or sex, over draws of links, a tenth of them wrong.

Under the settings of the demonstration. Hard links are refused where they contradict one another.

Run: python benchmarks/crabs.py [--draws 10] [--sex 200] [--species 60]
"""

import argparse

import numpy as np
import pandas as pd
from sklearn.metrics import adjusted_rand_score

import sidebayes as sb
from sidebayes.cache import use_compilation_cache

FLIP_RATE = 0.1
QUESTIONS = ("sex", "species")


def fit(method, x, seed, **options):
    engine = sb.EM(num_restarts=10)
    options |= {"num_clusters": 2, "covariance": "tied", "engine": engine, "seed": seed}
    return sb.fit(method, x, progress=False, **options)


def hard_index(data, links, seed):
    """Adjusted Rand index under hard links, NaN where they are refused."""
    try:
        found = fit("ppc", data.x, seed, links=links.with_strength(np.inf), reading="relation")
    except ValueError:
        return np.nan
    return adjusted_rand_score(data.labels, found.labels())


def row(question, num_links, draw):
    """Adjusted Rand indices, and what is found of the links, of one draw of links."""
    data = sb.load_dataset("crabs", label=question)
    weight = sb.flip_rate_weight(FLIP_RATE)
    links = sb.simulate_links(data.labels, num_links, flip_rate=FLIP_RATE, weight=weight, seed=draw)
    wrong = links.same != (data.labels[links.pairs[:, 0]] == data.labels[links.pairs[:, 1]])
    relation = {"links": links, "reading": "relation"}
    given = fit("ppc", data.x, draw, **relation)
    learned = fit("ppc", data.x, draw, **relation, flip_rate="learned")
    suspects = learned.suspect_links().query("probability > 0.5").index
    fits = {"none": fit("gmm", data.x, draw), "given": given, "learned": learned}
    return {
        "question": question,
        "draw": draw,
        **{name: adjusted_rand_score(data.labels, found.labels()) for name, found in fits.items()},
        "flip rate": learned.params["flip_rate"],
        "wrong": wrong.sum(),
        "suspects": len(suspects),
        "of them wrong": wrong[suspects].sum(),
        "hard": hard_index(data, links, draw),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--sex", type=int, default=200)
    parser.add_argument("--species", type=int, default=60)
    options = parser.parse_args()
    use_compilation_cache()
    rows = []
    for question in QUESTIONS:
        rows += [row(question, getattr(options, question), draw) for draw in range(options.draws)]
    table = pd.DataFrame(rows)
    print(table.round(3).to_string(index=False))
    print(table.drop(columns="draw").groupby("question").mean().round(3).to_string())


if __name__ == "__main__":
    main()
