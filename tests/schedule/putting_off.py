"""A policy that retracts on its own account."""

from blendserve_core.schedule.policies.ordered import OrderedAdmission
from blendserve_core.schedule.policy import Load


class PutsOffTheOldest(OrderedAdmission):
    """Puts off the oldest running request whenever it has two outputs and another one runs."""

    def to_retract(self, load: Load) -> list[int]:
        return load.running[:1].tolist() if len(load.running) > 1 and load.num_outputs[0] == 2 else []
