"""Private and experimental names of JAX and NumPyro that the library uses, one test for each.

A test that fails after an upgrade says which name has changed, and which file of ours relies on it.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from jax.experimental import serialize_executable
from numpyro import handlers, primitives
from numpyro.distributions import transforms
from sidebayes.guides.engines.plumbing import fingerprint, store


def test_stack_of_handlers():
    """plumbing/programs.py refuses handlers around a fit by `numpyro.primitives._PYRO_STACK`."""
    assert primitives._PYRO_STACK == []
    with handlers.seed(rng_seed=0):
        assert type(primitives._PYRO_STACK[-1]) is handlers.seed
    assert primitives._PYRO_STACK == []


@pytest.mark.parametrize("mask", [False, np.array([True, False])])
def test_mask_of_a_distribution(mask):
    """problem/honoured.py and blocks/collapsed.py read `MaskedDistribution._mask`."""
    found = dist.Normal(np.zeros(2), 1.0).mask(mask)._mask
    np.testing.assert_array_equal(found, mask)


def test_inverse_of_a_transform():
    """runs/record.py writes the argument of an inverse transform, kept as `_inv`."""
    transform = transforms.AffineTransform(1.0, 2.0)
    assert transform.inv._inv is transform


def test_settings_of_jax():
    """plumbing/fingerprint.py lists settings by `jax.config.values`, and reads those of a context."""
    assert "jax_enable_x64" in jax.config.values
    found = []
    for precise in (False, True):
        with jax.enable_x64(precise):
            found.append(dict(fingerprint.settings())["jax_enable_x64"])
    assert found == ["False", "True"]


@pytest.fixture
def lowered():
    return jax.jit(lambda x: jnp.cumsum(x) * 3.0).lower(np.arange(4.0, dtype=np.float32))


def test_serialised_programs(without_jax_cache):
    """plumbing/store.py writes programs by `jax.experimental.serialize_executable`."""
    # a program that JAX had cached lacks its machine code
    program = (
        jax.jit(lambda x: jnp.cumsum(x) * 5.0).lower(np.arange(4.0, dtype=np.float32)).compile()
    )
    written = serialize_executable.serialize(program)
    read = serialize_executable.deserialize_and_load(*written)
    value = np.arange(4.0, dtype=np.float32)
    np.testing.assert_array_equal(read(value), program(value))


def test_options_of_the_compiler(lowered):
    """plumbing/store.py names options of XLA; without them programs compile or run more slowly."""
    if jax.default_backend() != "cpu":
        pytest.skip("options of the CPU's compiler")
    lowered.compile({"xla_backend_optimization_level": 1})
    lowered.compile(store._WITHOUT_LIBRARY)


def test_events_of_compiling(lowered):
    """plumbing/store.py knows from an event of `jax.monitoring` that a program was compiled."""
    heard = []
    jax.monitoring.register_event_duration_secs_listener(lambda event, _, **__: heard.append(event))
    lowered.compile({"xla_backend_optimization_level": 1})
    assert store._COMPILED in heard


def test_event_of_a_cache(lowered, jax_cache):
    """plumbing/store.py knows from another event that JAX's own cache held the program."""
    heard = []
    jax.monitoring.register_event_listener(lambda event, **_: heard.append(event))
    lowered.compile({"xla_backend_optimization_level": 1})
    jax.clear_caches()
    lowered.compile({"xla_backend_optimization_level": 1})
    assert store._FOUND in heard


def test_lapack_is_made_known():
    """plumbing/store.py makes LAPACK known to programs from disk by a name of `jaxlib`."""
    from jaxlib import lapack

    assert lapack.prepare_lapack_call("potrf_ffi", np.float64)
