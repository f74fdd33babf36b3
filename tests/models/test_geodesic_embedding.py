"""Positions whose distances are observed in noise: densities, limits, side information, bad input."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest
from numpyro import handlers
from numpyro.infer import MCMC, NUTS
from scipy import stats
from scipy.sparse.csgraph import dijkstra
from scipy.spatial import procrustes
from scipy.spatial.distance import cdist
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.problem.density import log_joint
from sidebayes.models.blocks.embedding.distances import NOISES, NoisyDistances
from sidebayes.models.blocks.embedding.geodesics import choose_distances, geodesics_from
from sidebayes.models.blocks.embedding.placement import place_points
from sidebayes.models.blocks.embedding.positions import landmark_scaling
from sidebayes.models.blocks.side_information.partial_labels import PartialLabels
from sidebayes.models.geodesic_embedding import geodesic_embedding
from sklearn.manifold import Isomap, smacof

import sidebayes as sb
from sidebayes.results.positions import placements
from tests.reference.swiss_roll import swiss_roll
from tests.support.draws import at_one

RNG = np.random.default_rng(0)
Z = RNG.normal(size=(9, 2))
EXACT = cdist(Z, Z)
FEW = np.array([1, 4, 6, 8])
LINKS = sb.Links([(0, 1), (2, 3), (4, 5)], [2.0, -1.5, np.inf])
NOISY = EXACT * np.exp(0.1 * np.triu(RNG.normal(size=EXACT.shape), 1))
NOISY = np.triu(NOISY) + np.triu(NOISY).T


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def single(law, value, between, noise):
    """Log density of one distance, by scipy."""
    if law == "normal":
        return stats.truncnorm(-between / noise, np.inf, between, noise).logpdf(value)
    if law == "log_normal":
        return stats.lognorm(noise, scale=between).logpdf(value)
    return stats.t(4, np.log(between), noise).logpdf(np.log(value)) - np.log(value)


def centred(z):
    """Log density of normal points of mean zero, which have a degree of freedom less in each dimension."""
    return stats.norm(0, 1).logpdf(z).sum() + z.shape[1] * np.log(2 * np.pi) / 2


def joint(values, distances, landmarks, law, power, links=None):
    """Log joint density by loops over pairs of points."""
    z, variance = values["positions"], values["noise_variance"]
    noise = np.sqrt(variance) * (np.sqrt(2 * z.shape[1]) if law == "normal" else 1)
    total = centred(z) + stats.invgamma(1, scale=0.005).logpdf(variance)
    seen = set()
    for i in range(len(z)):
        for column, j in enumerate(landmarks):
            pair = frozenset((i, j))
            if i == j or pair in seen or np.isnan(distances[i, column]):
                continue
            seen.add(pair)
            total += power * single(law, distances[i, column], np.linalg.norm(z[i] - z[j]), noise)
    if links is not None:
        reach = values["reach"]
        total += stats.lognorm(0.5, scale=0.25).logpdf(reach)
        for (i, j), weight in zip(links.pairs, links.weights, strict=True):
            near = np.exp(-np.sum((z[i] - z[j]) ** 2) / (2 * reach**2))
            right = 1 / (1 + np.exp(-abs(weight)))
            together = right * near + (1 - right) * (1 - near)
            total += np.log(together if weight > 0 else 1 - together)
    return total


@pytest.mark.parametrize("law", NOISES)
@pytest.mark.parametrize("few", [False, True])
def test_density_is_that_of_every_pair_once(law, few):
    landmarks = FEW if few else np.arange(9)
    table = NOISY[:, landmarks].copy()
    table[0, 1] = table[5, 2] = np.nan  # one of the two of a pair of landmarks, where all are
    links, power = LINKS, 0.3
    values = {
        "positions": RNG.normal(size=(9, 2)),
        "noise_variance": np.array(0.04),
        "reach": np.array(0.4),
    }
    options = {"noise": law, "power": power, "scale": 1.0}
    options["reach"] = dist.LogNormal(np.log(0.25), 0.5)
    problem = Problem(geodesic_embedding, (None, links, None, landmarks, table), options)
    expected = joint(values, table, landmarks, law, power, links)
    found, slope = jax.jit(jax.value_and_grad(lambda v: log_joint(problem, v, problem.args)))(
        values
    )
    assert found == pytest.approx(expected, rel=1e-10)
    step = 1e-6 * RNG.normal(size=(9, 2))
    moved = [values | {"positions": values["positions"] + s * step} for s in (-1, 1)]
    change = np.diff([joint(v, table, landmarks, law, power, links) for v in moved])[0] / 2
    assert np.sum(np.asarray(slope["positions"]) * step) == pytest.approx(change, rel=1e-4)


def test_known_classes_are_summed_out():
    known = PartialLabels([0, 1, -1] * 3)
    values = {
        "positions": Z,
        "noise_variance": np.array(0.02),
        "within": np.array(0.3),
        "centers": np.array([[0.5, 0.0], [-1.0, 0.3]]),
    }
    options = {"scale": 1.0, "num_classes": 2}
    problem = Problem(geodesic_embedding, (None, None, known, np.arange(9), NOISY), options)
    found = jax.jit(lambda v: log_joint(problem, v, problem.args))(values)
    plain = joint(values, NOISY, np.arange(9), "log_normal", 1.0) - centred(Z)
    prior = stats.beta(2, 2).logpdf(0.3) + stats.norm(0, 0.7**0.5).logpdf(values["centers"]).sum()
    each = stats.norm(values["centers"], 0.3**0.5).logpdf(Z[:, None]).sum(axis=2)
    label = np.tile([0, 1, 2], 3)
    both = np.log(np.mean(np.exp(each), axis=1))
    prior += np.where(label == 2, both, each[np.arange(9), np.minimum(label, 1)]).sum()
    assert found == pytest.approx(plain + prior, rel=1e-10)


@pytest.mark.parametrize("law", NOISES)
def test_exact_distances_give_the_configuration(law):
    engine = sb.MAP(num_restarts=2)
    for landmarks in (np.arange(9), FEW):
        given = {"distances": EXACT[:, landmarks], "landmarks": landmarks, "noise": law}
        fit = sb.fit("geodesic_embedding", **given, engine=engine, progress=False)
        assert procrustes(Z, fit.params["positions"])[2] < 1e-5
        between = cdist(fit.params["positions"], fit.params["positions"])
        np.testing.assert_allclose(between, EXACT, atol=0.05 * EXACT.max())


def test_mode_is_the_minimum_of_stress():
    """With a wide prior, and noise small beside distances, normal noise is Kruskal's raw stress."""
    engine = sb.MAP(num_restarts=1, tol=1e-10, max_steps=5000)
    options = {"noise": "normal", "scale": 1e3, "noise_level": 1e-4, "engine": engine}
    fit = sb.fit("geodesic_embedding", distances=NOISY, **options, progress=False)
    start = landmark_scaling(NOISY, 2)
    best, stress = smacof(
        NOISY,
        n_components=2,
        init=start,
        n_init=1,
        eps=1e-14,
        max_iter=20_000,
        normalized_stress=False,
    )
    found = fit.params["positions"]
    residual = cdist(found, found) - NOISY
    assert np.sum(residual**2) / 2 == pytest.approx(stress, rel=1e-5)
    assert procrustes(best, found)[2] < 1e-6


GRAPH = {"num_neighbors": 8, "engine": sb.MAP(num_restarts=1), "progress": False}


def known_at(positions, **given):
    """Fit that knows where points are."""
    engine = at_one({"positions": positions, "noise_variance": 0.01, "scale": 1.0})
    return sb.fit("geodesic_embedding", **given, engine=engine, progress=False)


@pytest.fixture(scope="module")
def of_names():
    """Nine points of three named features, all of them neighbours, and a fit of them."""
    frame = pd.DataFrame(np.column_stack([Z, Z[:, 0] ** 2]), columns=["a", "b", "c"])
    return frame, known_at(Z - Z.mean(axis=0), x=frame, num_neighbors=8)


@pytest.fixture(scope="module")
def free():
    x = swiss_roll(60, 1)
    return x, sb.fit("geodesic_embedding", x, **GRAPH)


def test_start_is_isomap():
    x = swiss_roll(60, 1)
    graph = known_at(x[:, :2], x=x, num_neighbors=8)
    batch = Isomap(n_neighbors=8).fit(x)
    table = graph.run.data["distances"]
    np.testing.assert_allclose(
        table, dijkstra(batch.nbrs_.kneighbors_graph(mode="distance"), False)
    )
    np.testing.assert_allclose(
        procrustes(landmark_scaling(table, 2), batch.embedding_)[2], 0, atol=1e-10
    )


def test_geodesics_of_many_features_do_not_depend_on_an_offset():
    x = np.random.default_rng(0).integers(0, 100, (60, 30)).astype(float)
    options = {"num_neighbors": 12}
    (plain, near), (moved, far) = (
        (table, geodesics_from(x[:5] + o + 1, x + o, table, options))
        for o in (0.0, 2.0**33)
        for table in [choose_distances({"x": x + o, "landmarks": np.arange(20.0)}, options)]
    )
    np.testing.assert_allclose(plain, moved)
    np.testing.assert_allclose(near, far)


def test_landmarks_place_the_others():
    x = np.random.default_rng(1).normal(size=(50, 2))
    table = cdist(x, x[:7])
    table[20, 3] = np.nan
    assert procrustes(x, landmark_scaling(table, 2))[2] < 1e-2
    table[20, 3] = np.linalg.norm(x[20] - x[3])
    assert procrustes(x, landmark_scaling(table, 2))[2] < 1e-10


def test_simulated_distances_are_symmetric():
    fn = NoisyDistances(jnp.asarray(Z), jnp.asarray(FEW), 0.1, "log_normal")
    drawn = np.asarray(jax.jit(lambda: fn.sample(jax.random.key(0), (400,)))())
    among = drawn[:, FEW]
    np.testing.assert_array_equal(among, np.swapaxes(among, 1, 2))
    assert (np.diagonal(among, axis1=1, axis2=2) == 0).all()
    off = EXACT[:, FEW] > 0
    left = np.log(drawn[:, off] / EXACT[:, FEW][off])
    assert np.abs(left.mean(axis=0)).max() < 5 * 0.1 / 20
    np.testing.assert_allclose(left.std(), 0.1, rtol=0.05)


def test_bare_numpyro_draws():
    model = handlers.seed(geodesic_embedding, jax.random.key(0))
    given = {"num_points": 6, "links": sb.Links([(0, 1)], [1.0])}
    drawn = jax.jit(lambda: handlers.trace(model).get_trace(**given)["distances"]["value"])()
    assert drawn.shape == (6, 6)
    assert np.isfinite(drawn).all()


def test_bare_numpyro_runs():
    mcmc = MCMC(NUTS(geodesic_embedding), num_warmup=5, num_samples=5, progress_bar=False)
    mcmc.run(jax.random.key(1), distances=jnp.asarray(NOISY))
    assert np.isfinite(mcmc.get_samples()["positions"]).all()


def test_links_and_classes_pull_points(free):
    x, free = free[0], free[1].params["positions"]
    ends = np.unravel_index(cdist(free, free).argmax(), (60, 60))
    near = sb.fit("geodesic_embedding", x, sb.Links([ends], [np.inf]), **GRAPH)
    middle = np.unravel_index(
        np.where(cdist(free, free) > 0, cdist(free, free), 9e9).argmin(), (60, 60)
    )
    far = sb.fit("geodesic_embedding", x, sb.Links([middle], [-np.inf]), **GRAPH)

    def apart(positions, pair):
        return np.linalg.norm(positions[pair[0]] - positions[pair[1]])

    assert apart(near.params["positions"], ends) < 0.98 * apart(free, ends)
    assert apart(far.params["positions"], middle) > apart(free, middle)
    rough = EXACT * np.exp(0.8 * np.triu(np.random.default_rng(3).normal(size=EXACT.shape), 1))
    rough = np.triu(rough) + np.triu(rough).T
    label = (Z[:, 0] > 0).astype(int)
    given = {"distances": rough, "engine": sb.MAP(num_restarts=2), "progress": False}
    told = sb.fit("geodesic_embedding", known=label, num_classes=2, **given)
    untold = sb.fit("geodesic_embedding", **given)

    def within(positions):
        return (
            sum(positions[label == c].var(axis=0).sum() for c in (0, 1))
            / positions.var(axis=0).sum()
        )

    assert within(told.params["positions"]) < within(untold.params["positions"])


@pytest.fixture(scope="module")
def gaussian():
    with jax.enable_x64(True):
        x = swiss_roll(80, 2)
        return x, sb.fit(
            "geodesic_embedding",
            x,
            num_neighbors=8,
            num_landmarks=30,
            engine=sb.Laplace(num_restarts=1, num_draws=300),
            progress=False,
        )


def test_positions_are_in_one_frame(gaussian):
    _, fit = gaussian
    table = fit.positions()
    mean = table[["position_0", "position_1"]].to_numpy()
    np.testing.assert_allclose(mean.mean(axis=0), 0, atol=1e-9)
    np.testing.assert_allclose(mean[:, 0] @ mean[:, 1], 0, atol=1e-6 * np.sum(mean**2))
    assert (table[["sd_0", "sd_1"]] > 0).all(axis=None)
    assert fit.log_evidence is not None
    fit.plot()


def test_new_points_are_placed(gaussian, tmp_path):
    x, fit = gaussian
    rest = np.setdiff1d(np.arange(80), fit.run.data["landmarks"].astype(int))[:10]
    old = fit.positions().loc[rest].reset_index(drop=True)
    again = fit.place(distances=fit.run.data["distances"][rest])
    gap = (again["position_0"] - old["position_0"]) / old["sd_0"]
    assert np.abs(gap.median()) < 0.2
    assert np.quantile(np.abs(gap), 0.9) < 1.5
    np.testing.assert_allclose(np.median(again["sd_0"] / old["sd_0"]), 1.0, atol=0.2)
    moved = fit.place(x[rest] + 0.01)
    np.testing.assert_allclose(moved["position_0"], again["position_0"], atol=0.5)
    with pytest.warns(
        sb.SideBayesWarning, match="1 of 2 new points, the first of them 1, are more"
    ):
        fit.place(x[rest[:2]] + np.array([[0.0], [100.0]]))
    fit.save(tmp_path / "fit.nc")
    np.testing.assert_allclose(sb.load(tmp_path / "fit.nc").place(x[rest] + 0.01), moved, rtol=1e-6)


def test_columns_of_new_points_are_matched_by_name(of_names):
    frame, fit = of_names
    new = frame[:3] + 0.01
    placed = fit.place(new)
    pd.testing.assert_frame_equal(fit.place(new[["c", "a", "b"]]), placed)
    with pytest.raises(ValueError, match=r"x lacks \['c'\] and has \['d'\]"):
        fit.place(new.rename(columns={"c": "d"}))
    names = [f"p{number}" for number in range(len(NOISY))]
    table = pd.DataFrame(NOISY, columns=names)
    fit = known_at(Z - Z.mean(axis=0), distances=table)
    pd.testing.assert_frame_equal(
        fit.place(distances=table[:3][names[::-1]]), fit.place(distances=NOISY[:3])
    )


@pytest.mark.parametrize("law", NOISES)
def test_placement_is_the_posterior_on_a_grid(law):
    anchors, noise = Z, 0.1
    true = np.array(
        [-2.0, 0.8]
    )  # away from all anchors, where the logarithm of a distance is curved
    row = np.linalg.norm(true - anchors, axis=1) * np.exp(0.1 * RNG.normal(size=9))
    found = place_points(
        row[None], anchors[None], jnp.array([noise]), jnp.array(1.0), jnp.array(1.0), law
    )
    axis = np.linspace(-3.5, 3.5, 350)
    grid = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
    log = single(law, row, cdist(grid, anchors), noise).sum(axis=1)
    log += stats.norm.logpdf(grid).sum(axis=1)
    weight = np.exp(log - log.max())
    evidence = np.log(weight.sum() * (axis[1] - axis[0]) ** 2) + log.max()
    mean = weight @ grid / weight.sum()
    spread = np.sqrt(weight @ (grid - mean) ** 2 / weight.sum())
    np.testing.assert_allclose(found.mode[0, 0], mean, atol=0.6 * spread.min())
    np.testing.assert_allclose(np.sqrt(np.diagonal(found.covariance[0, 0])), spread, rtol=0.35)
    assert float(found.log_density[0, 0]) == pytest.approx(evidence, abs=0.3)


@pytest.mark.parametrize("engine", ["map", "laplace", "svi", "nuts", "hmc", "mclmc"])
@pytest.mark.filterwarnings("ignore::sidebayes.SideBayesWarning")
def test_every_engine_and_units(engine):
    """Positions are in the unit of the distances, whichever that is."""
    small = {
        "map": sb.MAP(num_restarts=1),
        "laplace": sb.Laplace(num_restarts=1),
        "svi": sb.SVI(num_restarts=1, num_steps=200),
        "nuts": sb.NUTS(num_warmup=30, num_samples=30, num_chains=1),
        "hmc": sb.HMC(num_warmup=30, num_samples=30, num_chains=1),
        "mclmc": sb.MCLMC(num_warmup=30, num_samples=30, num_chains=1),
    }[engine]
    fits = [
        sb.fit("geodesic_embedding", distances=unit * NOISY, engine=small, progress=False)
        for unit in (1.0, 1000.0)
    ]
    assert {fit.engine for fit in fits} == {engine}
    means = [fit.positions()[["position_0", "position_1"]].to_numpy() for fit in fits]
    if engine in ("nuts", "hmc", "mclmc"):  # few draws, which rounding sends elsewhere
        sizes = [np.linalg.norm(mean) for mean in means]
        np.testing.assert_allclose(sizes[1], 1000 * sizes[0], rtol=0.2)
    else:
        np.testing.assert_allclose(means[1], 1000 * means[0], rtol=1e-3, atol=5)


def test_chains_agree_once_aligned():
    engine = sb.NUTS(num_warmup=300, num_samples=300, num_chains=2)
    fit = sb.fit("geodesic_embedding", distances=NOISY, engine=engine, progress=False)
    assert fit.convergence["rhat"] < 1.05
    assert fit.aligned[1] > 0.9
    laplace = sb.fit("geodesic_embedding", distances=NOISY, engine="laplace", progress=False)
    drawn, near = fit.positions(), laplace.positions()
    np.testing.assert_allclose(drawn["sd_0"].mean(), near["sd_0"].mean(), rtol=0.4)


PARTS = np.full((6, 6), np.nan)
PARTS[:3, :3], PARTS[3:, 3:] = EXACT[:3, :3], EXACT[:3, :3]


def changed(row, column, value):
    table = EXACT.copy()
    table[row, column] = value
    return table


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "lacks data"),
        ({"distances": changed(0, 1, -1.0)}, r"distances\[0, 1\] = -1"),
        ({"distances": changed(0, 1, 9.0)}, "not symmetric"),
        ({"distances": changed(2, 2, 0.5)}, "from itself"),
        ({"distances": changed(0, 1, np.inf)}, "infinite"),
        ({"distances": EXACT[:, :4]}, "give the numbers of the 4 points"),
        ({"distances": EXACT[:, FEW], "landmarks": [1, 4, 6, 20]}, "different numbers of points"),
        ({"distances": EXACT[:, FEW], "landmarks": [1, 4, 4, 8]}, "different numbers of points"),
        ({"distances": PARTS}, "fall into 2 parts"),
        ({"distances": np.zeros((4, 4))}, "no distance above zero"),
        ({"distances": cdist(Z[[0, 0, 1, 2]], Z[[0, 0, 1, 2]])}, "one position"),
        ({"distances": EXACT, "num_dimensions": 9}, "9 landmarks cannot tell"),
        ({"x": np.vstack([Z, Z[:1]])}, "point 9 equals point 0"),
        ({"x": np.vstack([Z, Z + 100]), "num_neighbors": 3}, "has 2 parts, of 9, 9 points"),
        ({"x": np.where(Z > 2, np.nan, Z) * [np.nan, 1]}, "missing or infinite"),
        ({"x": Z, "num_neighbors": 9}, "num_neighbors = 9"),
        ({"distances": EXACT, "noise": "gamma"}, "noise = 'gamma'"),
        ({"distances": EXACT, "power": 2.0}, "power = 2.0"),
        ({"distances": EXACT, "reach": 0.0}, "reach = 0.0"),
        ({"distances": EXACT, "scale": -1.0}, "scale = -1.0"),
        ({"distances": EXACT, "known": [0] * 9}, "num_classes"),
    ],
)
def test_bad_input(given, message):
    with pytest.raises((ValueError, TypeError), match=message):
        sb.fit("geodesic_embedding", engine="map", progress=False, **given)


def test_scores_of_powers_are_refused(gaussian):
    with pytest.raises(ValueError, match="power"):
        gaussian[1].loo()
    mode = sb.fit(
        "geodesic_embedding", Z, num_neighbors=4, engine=sb.MAP(max_steps=3), progress=False
    )
    with pytest.raises(ValueError, match=r"BIC is about densities of data.* to a power"):
        _ = mode.bic
    whole = sb.fit("geodesic_embedding", distances=NOISY, engine="laplace", progress=False)
    with pytest.warns(
        sb.SideBayesWarning, match="Pareto k"
    ):  # a position rests on its own distances
        whole.loo()


def test_what_place_refuses(of_names):
    _, fit = of_names
    for given, message in (
        ({}, "either"),
        ({"distances": np.ones((2, 3))}, "a column for each landmark"),
        ({"distances": -np.ones((2, 9))}, "negative"),
        ({"x": np.ones((2, 5))}, "5 features"),
    ):
        with pytest.raises(ValueError, match=message):
            fit.place(**given)
    engine = at_one({"weights": [1.0], "mean": Z[:1], "covariance": [np.eye(2)]})
    with pytest.raises(ValueError, match="no positions"):
        sb.fit("gmm", Z, num_clusters=1, engine=engine, progress=False).positions()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sidebayes.SideBayesWarning")
def test_a_point_left_out_is_predicted_by_a_fit_without_it():
    engine = sb.NUTS(num_warmup=300, num_samples=300, num_chains=2)
    x = np.random.default_rng(5).normal(size=(12, 2))
    table = cdist(x, x) * np.exp(0.2 * np.triu(np.random.default_rng(6).normal(size=(12, 12)), 1))
    table = np.triu(table) + np.triu(table).T
    given = {"engine": engine, "scale": 1.0, "progress": False}
    whole = sb.fit("geodesic_embedding", distances=table, **given)
    scores = whole.loo_points()
    assert scores.index.tolist() == list(range(12))
    one = int(scores["pareto_k"].argmin())
    assert scores["pareto_k"][one] < 0.7
    rest = np.delete(np.arange(12), one)
    without = sb.fit("geodesic_embedding", distances=table[np.ix_(rest, rest)], **given)
    with jax.enable_x64(True):
        terms = np.asarray(placements(without, table[one][None, rest]).log_density)[:, 0]
    expected = np.log(np.mean(np.exp(terms - terms.max()))) + terms.max()
    weights = np.exp(terms - terms.max())
    error = weights.std() / weights.mean() / np.sqrt(20)  # draws in a row are not independent
    assert abs(scores["elpd"][one] - expected) < 4 * error + 0.5


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sidebayes.SideBayesWarning")
@pytest.mark.parametrize("criterion", ["evidence", "loo"])
def test_dimensions_are_chosen(criterion):
    x = np.random.default_rng(0).normal(size=(20, 2))
    noise = np.triu(np.random.default_rng(1).normal(size=(20, 20)), 1)
    table = cdist(x, x) * np.exp(0.1 * (noise + noise.T))
    found = sb.select_dimensions(
        distances=table,
        num_dimensions=(1, 2, 3),
        criterion=criterion,
        engine=sb.Laplace(num_restarts=2),
        progress=False,
    )
    assert found.num_dimensions == 2
    assert found.fit.params["positions"].shape == (20, 2)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"num_dimensions": ()}, "empty"),
        ({"num_dimensions": 3}, "several numbers"),
        ({"criterion": "aic"}, "criterion = 'aic'"),
        ({"engine": "map"}, "too few to leave points out"),
    ],
)
def test_what_a_choice_of_dimensions_refuses(given, message):
    with pytest.raises((ValueError, TypeError), match=message):
        sb.select_dimensions(distances=EXACT, progress=False, **given)
