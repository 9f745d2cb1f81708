"""`--env recsim`: the interest-evolution environment in one of its presets."""

from bcd4rec.errors import InputError
from bcd4rec.sim.environment import ENVIRONMENTS, Environment, EnvironmentOptions
from bcd4rec.sim.interest_evolution import InterestEvolution, preset


@ENVIRONMENTS.register("recsim")
def recsim(options: EnvironmentOptions) -> Environment:
    if options.model is not None:
        raise InputError("--env recsim takes no --model; it takes a --preset.")
    return InterestEvolution(preset(options.preset or "paper"))
