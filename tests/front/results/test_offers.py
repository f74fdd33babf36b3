"""What a fit offers where the model has no labels: what works, and what is refused, by which sentence."""

from __future__ import annotations

import re
from typing import Annotated

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import sidebayes
from sidebayes import NUTS, Links
from sidebayes.results.fit import Fit

RNG = np.random.default_rng(0)
X = RNG.normal(size=30)
Y = 1.0 + 2.0 * X + RNG.normal(scale=0.5, size=30)


def line(x: Annotated[np.ndarray, "points"], y: Annotated[np.ndarray, "points"]) -> None:
    slope = numpyro.sample("slope", dist.Normal(0.0, 5.0))
    level = numpyro.sample("level", dist.Normal(0.0, 5.0))
    noise = numpyro.sample("noise", dist.HalfNormal(2.0))
    with numpyro.plate("points", len(x)):
        numpyro.sample("y", dist.Normal(level + slope * x, noise), obs=y)


NO_LABELS = "line has no labels, so there are no {}: it observes no mixture. fit.predictive"
WORKS = {
    "from_draws": lambda fit: Fit.from_draws(
        line, {"x": X, "y": Y}, {n: v[None, None] for n, v in fit.params.items()}
    ),
    "aligned": lambda fit: fit.aligned[0]["posterior"],
    "approximate": lambda fit: fit.approximate is None,
    "bic": lambda fit: fit.bic,
    "class_names": lambda fit: fit.class_names == (),
    "config": lambda fit: fit.config.climbs,
    "convergence": lambda fit: fit.convergence,
    "covariance": lambda fit: fit.covariance.loc["slope", "slope"] > 0,
    "engine": lambda fit: fit.engine == "map",
    "event_times": lambda fit: fit.event_times is None,
    "has_classes": lambda fit: not fit.has_classes,
    "has_labels": lambda fit: not fit.has_labels,
    "kfold": lambda fit: np.isfinite(fit.kfold(2, progress=False).elpd),
    "links": lambda fit: not len(fit.links),
    "log_evidence": lambda fit: fit.log_evidence is None,
    "log_prob": lambda fit: fit.log_prob(X, Y).shape == (30,),
    "method": lambda fit: fit.method == "line",
    "model": lambda fit: fit.model is line,
    "objective": lambda fit: fit.objective.size,
    "of": lambda fit: Fit.of(fit.run, progress=False),
    "options": lambda fit: fit.options == {},
    "params": lambda fit: abs(fit.params["slope"] - 2.0) < 0.5,
    "picture": lambda fit: fit.picture is None,
    "predictive": lambda fit: fit.predictive(np.zeros(2))["predictions"]["y"],
    "relabelled": lambda fit: fit.relabelled[1] == 1.0,
    "resume": lambda fit: fit.resume(5).params,
    "run": lambda fit: fit.run.data,
    "save": lambda fit: fit.save,
    "seconds": lambda fit: fit.seconds["total"],
    "status": lambda fit: fit.status.converged,
    "summary": lambda fit: set(fit.summary().index) == {"slope", "level", "noise"},
    "thinned": lambda fit: fit.thinned["posterior"],
    "tree": lambda fit: "responsibilities" not in fit.tree,
    "unit_terms": lambda fit: fit.unit_terms.shape == (1, 1, 30),
    "verdict": lambda fit: fit.verdict[0] in ("good", "caution"),
}
"""What works, and a fact about it that holds."""
REFUSED = {
    "class_probabilities": (
        lambda fit: fit.class_probabilities(),
        "line has no classes, only what",
    ),
    "classes": (lambda fit: fit.classes(), "line has no classes, only what"),
    "coefficients": (
        lambda fit: fit.coefficients(),
        "line has no fixed effects; 'mixed_effects' has",
    ),
    "curves": (lambda fit: fit.curves(x=X), NO_LABELS.format("curves of clusters")),
    "effects": (lambda fit: fit.effects(), "line integrates no random effects out"),
    "forecast": (lambda fit: fit.forecast(x=X), NO_LABELS.format("curves of clusters")),
    "labels": (lambda fit: fit.labels(), NO_LABELS.format("labels")),
    "latents": (lambda fit: fit.latents(), "line integrates no latent variables out, labels aside"),
    "loo": (lambda fit: fit.loo(), "map gave 1 draw, too few to leave data out"),
    "plot": (lambda fit: fit.plot(), NO_LABELS.format("clusters to draw")),
    "predict": (lambda fit: fit.predict(X), NO_LABELS.format("labels to predict")),
    "predict_proba": (lambda fit: fit.predict_proba(X), NO_LABELS.format("labels to predict")),
    "responsibilities": (lambda fit: fit.responsibilities(), NO_LABELS.format("responsibilities")),
    "same_cluster": (lambda fit: fit.same_cluster([[0, 1]]), NO_LABELS.format("clusters to share")),
    "score_links": (
        lambda fit: fit.score_links(Links([[0, 1]], [1.0], 30)),
        NO_LABELS.format("links to score"),
    ),
    "survival": (
        lambda fit: fit.survival([1.0], since=0.0),
        "line observes no times to an event by a PiecewiseHazard",
    ),
    "suspect_links": (lambda fit: fit.suspect_links(), NO_LABELS.format("links to suspect")),
    "with_evidence": (
        lambda fit: fit.with_evidence(),
        "map has no draws of the posterior itself, which a bridge needs",
    ),
}
REFUSED |= {
    name: (call, "line has no shapes: no observed site says")
    for name, call in {
        "modes": lambda fit: fit.modes(),
        "shape_at": lambda fit: fit.shape_at([0.0]),
        "shape_difference": lambda fit: fit.shape_difference(0, 1),
        "shape_effects": lambda fit: fit.shape_effects(),
        "shape_quality": lambda fit: fit.shape_quality(),
        "shapes": lambda fit: fit.shapes(),
    }.items()
}
REFUSED |= {
    name: (call, "line has no positions of points")
    for name, call in {
        "loo_points": lambda fit: fit.loo_points(),
        "place": lambda fit: fit.place(X),
        "positions": lambda fit: fit.positions(),
    }.items()
}
REFUSED["group_log_likelihood"] = (
    lambda fit: fit.group_log_likelihood(X),
    "line has no latent shapes of individuals",
)
REFUSED |= {
    name: (call, "the model has no saliencies of features")
    for name, call in {
        "contrast": lambda fit: fit.contrast(),
        "contrast_saliencies": lambda fit: fit.contrast_saliencies(),
        "features": lambda fit: fit.features(),
        "imputed": lambda fit: fit.imputed(),
    }.items()
}
"""What is refused, and how the sentence begins."""


@pytest.fixture(scope="module")
def fit():
    return sidebayes.fit(line, X, Y, engine="map", progress=False)


def test_every_member_is_told():
    public = {name for name in dir(Fit) if not name.startswith("_")} | {"tree", "run"}
    assert public == WORKS.keys() | REFUSED.keys()
    assert not WORKS.keys() & REFUSED.keys()


@pytest.mark.parametrize("name", WORKS)
def test_works_without_labels(fit, name):
    found = WORKS[name](fit)
    assert found is not None
    assert found is not False


@pytest.mark.parametrize("name", REFUSED)
def test_is_refused_without_labels(fit, name):
    ask, sentence = REFUSED[name]
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}"):
        ask(fit)


def test_no_pairs_are_suggested_without_labels(fit):
    for given in (fit, [fit]):
        with pytest.raises(ValueError, match=re.escape(NO_LABELS.format("pairs to ask about"))):
            sidebayes.suggest_links(given, 3)


def test_draws_without_labels():
    """What a mode lacks, draws have: units left out, and a criterion that is of a mode is refused."""
    engine = NUTS(num_warmup=100, num_samples=400, num_chains=2)
    fit = sidebayes.fit(line, X, Y, engine=engine, progress=False)
    assert fit.loo().n_data_points == 30
    assert fit.relabelled[0] is fit.tree
    with pytest.raises(ValueError, match="nuts gave draws, and BIC is of a mode"):
        _ = fit.bic
