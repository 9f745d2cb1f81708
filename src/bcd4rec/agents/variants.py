"""The six agents of the paper's table of variants: a head, and a batch constraint or none."""

from pydantic import Field

from bcd4rec.agents.agent import AGENTS
from bcd4rec.agents.q_learning import QLearningConfig
from bcd4rec.models.heads import HeadName

BETA = 0.5


@AGENTS.register("dqn")
class DQN(QLearningConfig):
    """Double DQN: one expected value, no constraint (van Hasselt et al., 2016)."""

    head: HeadName = "expected"


@AGENTS.register("bcq")
class BCQ(QLearningConfig):
    """Discrete BCQ: DQN whose next actions must be likely under the log's policy (Fujimoto et al., 2019)."""

    head: HeadName = "expected"
    beta: float = Field(default=BETA, ge=0, le=1)


@AGENTS.register("qrdqn")
class QRDQN(QLearningConfig):
    """Quantile regression DQN: K fixed quantiles of the return (Dabney et al., 2017)."""

    head: HeadName = "fixed"


@AGENTS.register("qrbcq")
class QRBCQ(QLearningConfig):
    """QR-DQN with the batch constraint."""

    head: HeadName = "fixed"
    beta: float = Field(default=BETA, ge=0, le=1)


@AGENTS.register("iqn")
class IQN(QLearningConfig):
    """Implicit quantile network: any quantile of the return, through a cosine embedding (Dabney et al., 2018)."""

    head: HeadName = "implicit"


@AGENTS.register("bcd4rec")
class BCD4Rec(QLearningConfig):
    """The paper's agent: IQN whose next actions must be likely under the log's policy."""

    head: HeadName = "implicit"
    beta: float = Field(default=BETA, ge=0, le=1)
