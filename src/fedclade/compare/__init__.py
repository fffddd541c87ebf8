"""Many runs side by side: a study, its runs, and the table of what came of them.

study       what is compared with what, and the run that each cell and seed is
running     runs what is missing, in processes
outcomes    finished runs -> rows -> tables
"""

from fedclade.compare.outcomes import Comparison
from fedclade.compare.running import compare
from fedclade.compare.study import PlannedRun, Study

__all__ = ["Comparison", "PlannedRun", "Study", "compare"]
