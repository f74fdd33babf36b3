"""Latent shapes seen through points: what simulated shapes are found to be, and seconds.

Run: python -m benchmarks.latent_shape [--only boxes|ellipsoids|tubes|missing|geodesic|speed|leaves|speed3d]
Shapes are those of Yu (2016, section 3.7), as the simulators of the library make them. "speed" fits in a
fresh process that starts with no program compiled; "speed3d" is long, and runs only where it is named.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time

import jax
import numpy as np
from scipy.optimize import least_squares
from sidebayes.models.blocks.manifolds.shape_chart import ShapeChart

import sidebayes as sb

RIDGES = (1e-3, 1e-4, 1e-7, 1e-10)
ENGINE = "monte_carlo_em"
AIM_SECONDS = {"speed": 180, "speed3d": 900}


def fitted(laid, classes=None, **options):
    """Fit of registered points, with known groups or all in one, and its seconds."""
    known = None if classes is None else sb.PartialLabels(classes)
    number = 1 if classes is None else int(classes.max()) + 1
    began = time.perf_counter()
    fit = sb.fit(
        "latent_shape", laid.x, laid.subjects, laid.landmarks, known=known, chart=laid.chart,
        num_clusters=number, progress=False, **({"engine": ENGINE} | options),
    )  # fmt: skip
    return fit, time.perf_counter() - began


def unit(shapes):
    """Centred, of norm one."""
    apart = shapes - shapes.mean(axis=-2, keepdims=True)
    return apart / np.linalg.norm(apart, axis=(-2, -1), keepdims=True)


def in_chart(chart, shapes):
    """Coordinates of shapes that correspond, and these shapes aligned with the reference."""
    with jax.enable_x64(True):
        found = ShapeChart.of(chart)
        table = found.coordinates(shapes)
        return np.asarray(table), np.asarray(found.shapes(table))


def to_outline(points, outline):
    """Distance of points to a closed outline, shape (num_points,)."""
    side = np.roll(outline, -1, axis=0) - outline
    along = ((points[:, None] - outline) * side).sum(axis=2) / (side**2).sum(axis=1)
    nearest = outline + np.clip(along, 0, 1)[..., None] * side
    return np.linalg.norm(points[:, None] - nearest, axis=2).min(axis=1)


def spread(table):
    """Singular values of coordinates about their mean, and the leading direction."""
    _, values, directions = np.linalg.svd(table - table.mean(axis=0), full_matrices=False)
    return values, directions[0]


def report_boxes():
    """Boxes with a bump: correspondences, and the one direction in which shapes vary."""
    data = sb.simulate_box_bumps()
    true = unit(data.shapes)
    groups = {
        "group 1": data.classes == 0,
        "group 2": data.classes == 1,
        "pooled": data.classes >= 0,
    }
    laid = sb.register_points(data.x, data.subjects, reference=data.shapes.mean(axis=0))
    table, aligned = in_chart(laid.chart, true)
    start = np.sqrt(((laid.chart[..., 0] - aligned) ** 2).mean())
    shown = ", ".join(f"{name} {spread(table[own])[0][0]:.3f}" for name, own in groups.items())
    print(f"truth: leading singular values {shown}; the reference is {start:.4f} from the shapes")
    for observation in ("kernel", "density"):
        for is_given in (True, False):
            mean = data.shapes.mean(axis=0) if is_given else None
            laid = sb.register_points(data.x, data.subjects, reference=mean)
            fit, seconds = fitted(laid, data.classes, observation=observation, rank=1)
            found, shapes = fit.params["coordinates"], fit.shapes()["individuals"].to_numpy()
            pairs = zip(shapes, aligned, strict=True)
            off = np.concatenate([to_outline(*pair) for pair in pairs])
            line = f"{observation}, {'mean given' if is_given else 'own reference'}: "
            line += f"to the outline {np.sqrt((off**2).mean()):.4f}, "
            if is_given:
                line += f"rms per coordinate {np.sqrt(((shapes - aligned) ** 2).mean()):.4f}, "
            for name, own in groups.items():
                values, direction = spread(found[own])
                line += f"{name} {values[0]:.3f} {values[1]:.3f}"
                if is_given:
                    line += f" |cos| {abs(direction @ spread(table[own])[1]):.2f}"
                line += "; "
            print(f"{line}{seconds:.0f} s, converged {fit.status.converged}", flush=True)


def report_tests(data, rank):
    """Tests of whether two groups differ, on latent shapes inferred in one group, and on the truth."""
    size = len(data.shapes[0])
    noise = data.x.reshape(data.shapes.shape)
    laid = sb.register_points(data.x, data.subjects, num_points=size)
    tried = {"true correspondences": sb.Landmarks.from_array(noise).aligned().coordinates}
    for observation in ("density", "kernel"):
        fit, seconds = fitted(laid, observation=observation, rank=rank)
        tried[f"{observation}, {seconds:.0f} s"] = fit.params["coordinates"]
    for name, table in tried.items():
        found = [
            sb.group_test(
                table, data.classes, statistics="hotelling", ridge=one, num_permutations=999
            )
            for one in RIDGES
        ]
        shown = ", ".join(f"{one.table.loc['hotelling', 'p']:.4f}" for one in found)
        own = sb.group_test(table, data.classes, num_permutations=999).table["p"]
        print(f"{name}: p {shown}; goodall {own['goodall']:.4f}", flush=True)
    print(
        f"  ridges {RIDGES}; the least p is {found[0].floor:.4f}, all labelings {found[0].is_exact}"
    )


def report_ellipsoids():
    """Ellipsoids, 20 in each of two groups."""
    report_tests(sb.simulate_ellipsoids(noise=0.002), 2)


def report_tubes():
    """Bent tubes, 6 against 4."""
    report_tests(sb.simulate_tubes(), 2)


def report_missing():
    """Landmarks in noise, a tenth of them missing, beside all of them."""
    rng = np.random.default_rng(0)
    size, noise = 40, 0.01
    mean = sb.simulate_box_bumps().shapes.mean(axis=0)[::4]
    direction = sb.simulate_box_bumps().shapes[0, ::4] - mean
    score = rng.normal(size=(size, 1, 1))
    true = unit(unit(mean) + 0.2 * score * direction / np.linalg.norm(direction))
    seen = true + noise * rng.normal(size=true.shape)
    holes = seen.copy()
    holes[rng.random(seen.shape[:2]) < 0.1] = np.nan
    for name, table in (("complete", seen), ("a tenth missing", holes)):
        laid = sb.register_points(sb.Landmarks.from_array(table), num_modes=28)
        fit, seconds = fitted(laid, rank=1)
        shapes = fit.shapes()["individuals"].to_numpy()
        _, aligned = in_chart(laid.chart, true)
        error = np.square(shapes - aligned).mean(axis=2)
        gone = np.isnan(holes[..., 0])
        found = np.sqrt(fit.params["noise_variance"])
        values, _ = spread(fit.params["coordinates"])
        print(
            f"{name}: rms per coordinate {np.sqrt(error[~gone].mean()):.4f} where the second lacks none, "
            f"{np.sqrt(error[gone].mean()):.4f} where it does; noise {found:.4f} (true {noise}); singular "
            f"values {values[0]:.2f}, {values[1]:.3f}; {seconds:.0f} s",
            flush=True,
        )


def along_a_geodesic(seed, deviation, size=8, noise=0.01, missing=0.1):
    """Mean and direction of 30 shapes on a geodesic, angles, shapes, landmarks in noise, which are seen."""
    rng = np.random.default_rng(seed)
    turn = np.linspace(0, 2 * np.pi, size, endpoint=False)
    mean = unit(np.stack([np.cos(turn), 0.6 * np.sin(turn)], axis=1))
    direction = rng.normal(size=mean.shape)
    direction -= direction.mean(axis=0)
    for barred in (mean, mean @ np.array([[0, 1], [-1, 0]])):
        direction -= (direction * barred).sum() * barred
    direction /= np.linalg.norm(direction)
    angles = deviation * rng.normal(size=30)
    true = np.cos(angles)[:, None, None] * mean + np.sin(angles)[:, None, None] * direction
    x = true + noise * rng.normal(size=true.shape)
    return mean, direction, angles, true, x, rng.random(true.shape[:2]) > missing


def similar(points, target, seen):
    """Points moved, scaled and rotated to a target by least squares at landmarks that are seen."""
    place, middle = target[seen].mean(axis=0), points[seen].mean(axis=0)
    own, rows = (((table - at) @ (1, 1j)) for table, at in ((points, middle), (target, place)))
    laid = own * np.vdot(own[seen], rows[seen]) / np.vdot(own[seen], own[seen])
    return np.stack([laid.real, laid.imag], axis=1) + place


def known_geodesic(mean, direction, x, seen, angle):
    """Shape on a geodesic that is nearest to landmarks that are seen, moved, scaled and rotated."""

    def shape(angle):
        return similar(np.cos(angle) * mean + np.sin(angle) * direction, x, seen)

    return shape(least_squares(lambda angle: (shape(angle) - x)[seen].ravel(), angle).x)


def report_geodesic():
    """Landmarks of shapes that vary along a geodesic, a tenth missing, beside a fit that knows it."""
    for seed, deviation, size in ((0, 0.2, 8), (1, 0.2, 8), (2, 0.2, 8), (2, 0.2, 16), (1, 0.1, 8)):
        mean, direction, angles, true, x, seen = along_a_geodesic(seed, deviation, size)
        marks = sb.Landmarks.from_array(np.where(seen[..., None], x, np.nan))
        given = zip(x, seen, angles, strict=True)
        found = [known_geodesic(mean, direction, *each) for each in given]
        best = np.sqrt(np.square(found - true).sum(axis=2)[~seen].mean())
        for modes, width in ((None, None), (2 * size - 4, 0.01)):
            laid = sb.register_points(marks, num_modes=modes)
            fit, seconds = fitted(laid, rank=1, width=width)
            shapes = fit.shapes()
            at = shapes["individuals"].to_numpy()
            aligned = np.stack([similar(*each) for each in zip(true, at, seen, strict=True)])
            error = np.square(at - aligned).sum(axis=2)
            rms = [np.sqrt(error[which].mean()) for which in (seen, ~seen)]
            held = (shapes["individuals_lower"].to_numpy() <= aligned) & (
                aligned <= shapes["individuals_upper"].to_numpy()
            )
            print(
                f"seed {seed}, deviation {deviation}, {size} landmarks, {laid.chart.shape[2] - 1} "
                f"directions, width {width}: rms seen {rms[0]:.4f}, missing {rms[1]:.4f}, with mean and "
                f"direction known {best:.4f}; 90 % bands hold {held[~seen].mean():.2f} of "
                f"{held[~seen].size} missing, {held[seen].mean():.2f} seen; {fit.verdict[0]}; "
                f"{seconds:.0f} s",
                flush=True,
            )


def nearest_class(data, is_seen):
    """Class whose individuals that are seen are nearest by the mean kernel distance, of each other one."""
    clouds = np.split(data.x, np.flatnonzero(np.diff(data.subjects.codes)) + 1)
    near = [x / np.sqrt((x**2).sum(axis=1).mean()) for x in (c - c.mean(axis=0) for c in clouds)]

    def mean_kernel(one, two):
        return np.exp(-((one[:, None] - two) ** 2).sum(axis=2) / (2 * 0.15**2)).mean()

    own = [mean_kernel(x, x) for x in near]
    apart = [
        [own[i] + own[j] - 2 * mean_kernel(near[i], near[j]) for j in np.flatnonzero(is_seen)]
        for i in np.flatnonzero(~is_seen)
    ]
    seen = data.classes[is_seen]
    means = [np.asarray(apart)[:, seen == k].mean(axis=1) for k in range(data.classes.max() + 1)]
    return np.argmin(means, axis=0)


def report_leaves():
    """New leaves by the evidence of each group, of whom three were seen, and by the nearest of these."""
    less = {"width_deviation": 0.05}
    for name, options in (
        ("", {}),
        (", e 0.40", less | {"asymmetry": 0.40}),
        (", e 0.35", less | {"asymmetry": 0.35}),
    ):
        for seed in range(5):
            data = sb.simulate_leaves(**options, seed=seed)
            seen = np.arange(len(data.classes)) % 23 < 3
            is_seen, own = seen[data.subjects.codes], data.subjects.codes
            laid = sb.register_points(data.x[is_seen], own[is_seen], num_points=48)
            fit, seconds = fitted(laid, data.classes[seen], rank=2)
            new = laid.register(data.x[~is_seen], own[~is_seen])
            began = time.perf_counter()
            found = fit.group_log_likelihood(new.x, new.subjects)
            told = found["probability"].to_numpy().argmax(axis=1)
            right = np.mean(told == data.classes[~seen])
            plain = np.mean(nearest_class(data, seen) == data.classes[~seen])
            error = found["standard_error"].to_numpy().max()
            spent = time.perf_counter() - began
            print(
                f"leaves{name}, seed {seed}: {right:.3f} of {len(told)} right, by the nearest {plain:.3f}; "
                f"standard error at most {error:.2g} nats; fit {seconds:.0f} s, groups {spent:.0f} s",
                flush=True,
            )


def speed_data(only):
    """Individuals of the asked number, points and axes."""
    if only == "speed":
        rng = np.random.default_rng(0)
        data = sb.simulate_leaves(20)
        own = data.subjects.codes
        order = rng.permutation(len(own))
        place = np.zeros(len(own), int)
        grouped = order[np.argsort(own[order], kind="stable")]
        first = np.searchsorted(own[grouped], np.arange(40))
        place[grouped] = np.arange(len(own)) - first[own[grouped]]
        kept = place < 64
        return data.x[kept], own[kept], data.classes, 64
    data = sb.simulate_ellipsoids(100, num_points=128, noise=0.002)
    return data.x, data.subjects, data.classes, 128


def measure(only):
    """Register and fit, and print what it took as JSON."""
    x, subjects, classes, size = speed_data(only)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    wall, cpu = time.perf_counter(), time.process_time()
    laid = sb.register_points(x, subjects, num_points=size)
    fit, _ = fitted(laid, classes)
    print(
        json.dumps(
            {
                "wall": time.perf_counter() - wall,
                "cpu": time.process_time() - cpu,
                "before": before,
                "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
                "what": repr(laid),
                "message": fit.status.message,
            }
        )
    )


def report_speed(only="speed"):
    """Run the fit in a process of its own, whose cache of programs is off."""
    command = [sys.executable, "-m", "benchmarks.latent_shape", "--child", only]
    load, environment = os.getloadavg()[0], os.environ | {"SIDEBAYES_CACHE": "off"}
    out = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    found = json.loads(out.stdout.splitlines()[-1])
    print(
        f"{found['what']}: {found['wall']:.0f} s wall (aim {AIM_SECONDS[only]}), {found['cpu']:.0f} CPU s"
    )
    print(f"  peak {found['peak']:.2f} GiB, {found['before']:.2f} before; load before {load:.1f}")
    print(f"  {found['message']}")


REPORTS = {
    "boxes": report_boxes,
    "ellipsoids": report_ellipsoids,
    "tubes": report_tubes,
    "missing": report_missing,
    "geodesic": report_geodesic,
    "leaves": report_leaves,
    "speed": report_speed,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=[*REPORTS, "speed3d"])
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return measure(options.child)
    if options.only == "speed3d":
        return report_speed("speed3d")
    for name, report in REPORTS.items():
        if options.only in (None, name):
            print(f"{name}:")
            report()


if __name__ == "__main__":
    main()
