"""Every run of the tests is the same run: threads, hypothesis' examples and patience do not depend on the machine."""

import os

for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "POLARS_MAX_THREADS"):
    os.environ.setdefault(variable, "1")  # two processes with two threads each slow each other down many times over
os.environ.pop("BCD4REC_PATIENCE", None)  # tests of a database that is away count on the usual one

from hypothesis import HealthCheck, settings  # noqa: E402 (after the variables)
from hypothesis.internal.conjecture import providers  # noqa: E402

# The same examples every time, with no time limit for making or running them. `--hypothesis-seed=N` draws others.
settings.register_profile(
    "same", derandomize=True, database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("same")
# Hypothesis also draws numbers and words that it finds in the modules imported so far, which other tests decide.
providers._get_local_constants = lambda: providers._local_constants
