"""A case on a trace, from one to the other end."""

from hpcdl.policies import Reallocation, all_policies
from hpcdl.sim.engine import rare_collections
from hpcdl.sim.replay.case import Case
from hpcdl.sim.replay.driven import Told, run
from hpcdl.sim.replay.idle import Idle
from hpcdl.sim.replay.outcome import Outcome, outcome_of


def replayed(idle: Idle, case: Case, progress: Told | None = None) -> Outcome:
    """What the case comes to on the trace. `progress`: is told the simulated hours now and then.

    The same arguments give the same outcome, decision times aside. WorkloadError: it cannot run on that trace.
    """
    policies = all_policies(Reallocation(t_fwd_s=case.t_fwd_s, parallel=case.parallel))
    with rare_collections():
        return outcome_of(idle, case, run(idle, case, policies, progress))
