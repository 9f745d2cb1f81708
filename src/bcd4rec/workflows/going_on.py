"""`train --from`: which policy training can go on from, with a vocabulary that may have grown since."""

import numpy as np

from bcd4rec.agents.agent import AGENTS, AgentConfig, Begun
from bcd4rec.data.dataset import Dataset
from bcd4rec.data.responses import Responses
from bcd4rec.errors import InputError
from bcd4rec.policies.policy import Policy
from bcd4rec.policies.scorer import SavedScorer

NAME = "The policy of --from"


def refuse_no_going_on(method: str) -> None:
    if method not in AGENTS or not AGENTS[method].goes_on:
        known = ", ".join(name for name in AGENTS if AGENTS[name].goes_on)
        raise InputError(f"--from is for agents whose policies keep all that they learned ({known}), not {method}.")


def begun_from(policy: Policy, config: AgentConfig, method: str, dataset: Dataset) -> Begun:
    """Where training goes on, or why it cannot, in one sentence."""
    about = policy.about
    if about.get("method") != method:
        found = about.get("method") or "something else, such as a mixture"
        raise InputError(f"{NAME} was trained by {found}, expected {method}; train that, or without --from.")
    told = about.get("config", {})
    for setting, value in config.network_settings().items():
        if told.get(setting) != value:
            raise InputError(
                f"{NAME} has a network with {setting}={told.get(setting)}, but this one has {setting}={value}; give "
                "the settings that it was trained with (--preset, --set)."
            )
    if policy.responses != dataset.responses:
        raise InputError(
            f"{NAME} learned with {_told(policy.responses)}, but the data set has {_told(dataset.responses)}; train "
            "without --from."
        )
    lost = np.flatnonzero(dataset.vocabulary.positions_of(policy.vocabulary) < 0)
    if len(lost):
        raise InputError(
            f"{NAME} knows {len(lost):,} items that the data set does not have, such as "
            f"{policy.vocabulary.id(int(lost[0]))!r}; add days to the data set that it learned from (prepare --append)."
        )
    scorer: SavedScorer = policy.scorer  # type: ignore[assignment]  # as of all that an agent has trained
    if not any(name.startswith(("learned.", "network.")) for name in scorer.arrays()):
        raise InputError(f"{NAME} has learned nothing beyond the response model, so there is nothing to go on from.")
    return Begun(scorer, policy.vocabulary.positions_of(dataset.vocabulary))


def _told(responses: Responses) -> str:
    rewards = ", ".join(f"{name}={reward:g}" for name, reward in responses.rewards.items())
    return f"the rewards {rewards} (positive: {', '.join(responses.positive)}; target: {responses.target})"
