"""Distances that contradict the others, and graphs with short circuits: named by fits and by `place`."""

import re
import warnings

import jax
import numpy as np
import pytest
from numpyro import handlers
from scipy.spatial.distance import cdist
from sidebayes.models.blocks.embedding.distances import NOISES, NoisyDistances
from sidebayes.models.blocks.embedding.geodesics import choose_distances, choose_landmarks
from sidebayes.models.blocks.embedding.points import Points
from sidebayes.models.geodesic_embedding import geodesic_embedding
from sklearn.datasets import load_wine, make_s_curve, make_swiss_roll

import sidebayes as sb
from tests.support.draws import Asked, Asking, at_one

SIZE = 30
NOISE = 0.05


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def noisy(seed, law="log_normal", size=SIZE):
    """Points in the plane, and their distances in noise of a law."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(size, 2))
    z -= z.mean(axis=0)
    drawn = rng.standard_t(4, (size, size)) if law == "log_t" else rng.normal(size=(size, size))
    error = NOISE * (np.triu(drawn, 1) + np.triu(drawn, 1).T)
    exact = cdist(z, z)
    table = np.abs(exact + error) if law == "normal" else exact * np.exp(error)
    return z, table * (1 - np.eye(size))


def remark(z, table, law, landmarks=None):
    landmarks = np.arange(len(z)) if landmarks is None else landmarks
    law = NoisyDistances(z, landmarks, NOISE, law)
    return law.remark_on_draw("distances", table[:, landmarks], is_density=True)


@pytest.mark.parametrize("law", NOISES)
def test_nothing_is_said_of_distances_in_the_noise_of_their_law(law):
    for seed in range(20):
        z, table = noisy(seed, law)
        table[2, 5] = table[5, 2] = np.nan
        assert remark(z, table, law) is None
        assert remark(z, table, law, np.arange(0, SIZE, 3)) is None


@pytest.mark.parametrize("law", ["log_normal", "normal"])
@pytest.mark.parametrize("value", [1e-9, 1e-3, 500.0, 1e6])
def test_a_distance_that_contradicts_the_others_is_named(law, value):
    for seed in range(3):
        z, table = noisy(seed, law)
        row, column = np.unravel_index(np.argmax(table), table.shape)
        table[row, column] = table[column, row] = value
        said = remark(z, table, law)
        assert f"distances[{row}, {column}] = {value:.4g} is" in said or (
            f"distances[{column}, {row}] = {value:.4g} is" in said
        )
        assert "noise='log_t'" in said
        assert "more" not in said
        assert remark(z, table, "log_t") is None  # whose tails have room for it


def test_a_short_distance_is_named_though_the_map_follows_it():
    """Relative noise puts the two points together, so that this distance has no residual."""
    z, table = noisy(0)
    row, column = 3, 7
    table[row, column] = table[column, row] = 1e-9
    z[row] = z[column] + 1e-9 * np.array([1.0, 0.0])
    assert remark(z, table, "log_normal").startswith(("distances[3, 7] =", "distances[7, 3] ="))


def test_twins_are_no_contradiction():
    z, table = noisy(0)
    z[1] = z[0] + np.array([1e-4, 0.0])
    rng = np.random.default_rng(1)
    for one in (0, 1):
        table[one] = np.linalg.norm(z - z[one], axis=1) * np.exp(NOISE * rng.normal(size=SIZE))
        table[:, one] = table[one]
    table[0, 1] = table[1, 0] = 1e-4
    assert remark(z, table, "log_normal") is None


def test_points_that_a_distance_makes_one_are_named():
    z, table = noisy(0)
    z[1] = z[0] + np.array([1e-9, 0.0])
    table = cdist(z, z)
    said = remark(z, table, "log_normal")
    assert "points 0 and 1 move as one" in said or "points 1 and 0 move as one" in said
    assert "Keep one of the two" in said
    assert remark(z, table, "normal") is None


def test_verdict_names_the_pair():
    z, table = noisy(2)
    row, column = np.unravel_index(np.argmax(table), table.shape)
    table[row, column] = table[column, row] = 1e-3
    at = {"positions": z, "noise_variance": NOISE**2, "scale": 1.0}
    fit = sb.fit("geodesic_embedding", distances=table, engine=at_one(at), progress=False)
    level, said = fit.verdict
    assert level == "caution"
    assert "= 0.001 is impossible beside the other distances of point" in said


@pytest.fixture(scope="module")
def known():
    """Points at known positions with known noise."""
    z, table = noisy(0)
    at = {"positions": z, "noise_variance": NOISE**2, "scale": 1.0}
    fit = sb.fit("geodesic_embedding", distances=table, engine=at_one(at), progress=False)
    rng = np.random.default_rng(1)
    new = cdist(rng.normal(size=(3, 2)), z)
    return fit, new * np.exp(NOISE * rng.normal(size=new.shape))


def test_place_says_nothing_of_new_distances_in_noise(known):
    fit, new = known
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit.place(distances=new)
        fit.place(distances=fit.run.data["distances"][:3])


@pytest.mark.parametrize("value", [1e-9, 1e6])
def test_place_warns_of_a_distance_that_contradicts_the_others(known, value):
    fit, new = known
    new = new.copy()
    column = new[1].argmax()
    new[1, column] = value
    message = rf"distances\[1, {column}\] = {value:.4g} is impossible".replace("+", r"\+")
    with pytest.warns(sb.SideBayesWarning, match=message):
        fit.place(distances=new)


def test_a_new_point_at_distance_zero_is_on_the_landmark(known):
    fit, _ = known
    own = fit.run.data["distances"][4:7]
    placed = fit.place(distances=own)
    there = fit.positions().loc[4:6, ["position_0", "position_1"]].reset_index(drop=True)
    np.testing.assert_allclose(placed[["position_0", "position_1"]], there, atol=1e-12)
    assert (placed[["sd_0", "sd_1"]] == 0).all(axis=None)


def test_zeros_that_contradict(known):
    fit, new = known
    one = new[:1].copy()
    one[0, one[0].argmax()] = 0.0
    with pytest.warns(sb.SideBayesWarning, match="= 0 is impossible"):
        fit.place(distances=one)
    with pytest.raises(ValueError, match=r"zero in columns 0, 1, 2, 3, 4, \.\.\. of row 1.*NaN"):
        fit.place(distances=np.stack([new[0], 0 * new[0]]))


def powers(**given):
    """Power of the density of distances in a fit, and in the bare model."""
    with pytest.raises(Asked) as asked:
        sb.fit("geodesic_embedding", **given, engine=Asking(), progress=False)
    problem, found = asked.value.problem, []

    def look(key):
        for model, args, options in (
            (problem.model, problem.args, problem.kwargs),
            (geodesic_embedding, (), given),
        ):
            trace = handlers.trace(handlers.seed(model, key)).get_trace(*args, **options)
            found.append(trace["distances"]["infer"]["power"])

    jax.eval_shape(look, jax.random.key(0))
    return tuple(found)


@pytest.mark.filterwarnings("ignore::sidebayes.SideBayesWarning")
def test_power_is_one_where_distances_are_given():
    z, table = noisy(0)
    x = np.column_stack([z, z[:, 0] ** 2])
    assert powers(x=x, distances=table) == (1.0, 1.0)
    assert powers(distances=table) == (1.0, 1.0)
    graph = SIZE * 8 / 2 / (SIZE * (SIZE - 1) / 2)
    assert powers(x=x) == pytest.approx((graph, graph))
    few = {"num_landmarks": 10}
    share = SIZE * 8 / 2 / (SIZE * 10 - 55)
    assert powers(x=x, **few) == pytest.approx((share, share))
    landmarks = np.arange(10)
    along = choose_distances({"x": x, "landmarks": landmarks}, {})
    assert powers(x=x, landmarks=landmarks) == pytest.approx((share, share))
    assert powers(x=x, landmarks=landmarks, distances=along) == (1.0, 1.0)


def remark_on_points(x, number=8, num_landmarks=None):
    """What is said of a table of points whose distances are those along its graph."""
    data, options = {"x": x}, {"num_neighbors": number, "num_landmarks": num_landmarks}
    data["landmarks"] = choose_landmarks(data, options)
    table = choose_distances(data, options)
    return Points(x, number).remark(table, data["landmarks"].astype(int))


@pytest.mark.parametrize("num_landmarks", [None, 30])
@pytest.mark.parametrize(("number", "seed"), [(8, 0), (8, 1), (6, 0)])
def test_short_circuits_are_named(number, seed, num_landmarks):
    x, turn = make_swiss_roll(300, random_state=seed)
    said = remark_on_points(x, number, num_landmarks)
    one, other = map(int, re.search(r"joins points (\d+) and (\d+),", said).groups())
    assert abs(turn[one] - turn[other]) > 4  # where a turn is 2 pi
    assert f"num_neighbors = {4 if number == 6 else 5}, with more rows" in said


def test_verdict_names_short_circuits():
    x, _ = make_swiss_roll(300, random_state=0)
    at = {"positions": x[:, :2] - x[:, :2].mean(axis=0), "noise_variance": 1.0, "scale": 1.0}
    fit = sb.fit("geodesic_embedding", x, engine=at_one(at), progress=False)
    level, said = fit.verdict
    assert level == "caution"
    assert "may have short circuits" in said
    assert "; 19 more edges are like it" in said


def holed():
    z = np.random.default_rng(0).uniform(-1, 1, (400, 2))
    return z[np.hypot(*z.T) > 0.5]


@pytest.mark.parametrize(
    ("x", "number"),
    [
        (make_swiss_roll(500, random_state=0)[0], 8),
        (make_swiss_roll(500, random_state=6)[0], 6),
        (make_s_curve(300, random_state=0)[0], 8),
        (holed(), 8),
        (np.random.default_rng(0).normal(size=(300, 2)), 8),
        (np.random.default_rng(0).standard_t(2, (300, 3)), 8),
        (np.random.default_rng(0).normal(size=(12, 2)), 11),
    ],
    ids=["roll", "roll of 6", "s-curve", "hole", "normal", "tails", "all neighbours"],
)
def test_nothing_is_said_of_sound_graphs(x, number):
    assert remark_on_points(x, number) is None


def test_far_rows_are_named():
    x = np.random.default_rng(0).normal(size=(100, 3))
    x[[3, 40]] += 1e3
    said = remark_on_points(x)
    assert said.startswith("x has values far from all others in row 3, 40: ")
    assert "correct it, drop the row or impute it" in said


def test_units_of_columns_are_named():
    said = remark_on_points(load_wine().data)
    assert said.startswith("The result depends on the units of the columns of x: column 12 has")


def test_nothing_is_said_of_points_whose_distances_were_measured():
    x = load_wine().data
    for rows in (x, x[:5], 1e-12 * x):
        assert Points(rows, 8).remark(cdist(rows, rows), np.arange(len(rows))) is None
