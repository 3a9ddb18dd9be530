# SPDX-License-Identifier: Apache-2.0
"""What trainings take under each policy, on emulated tiers."""

import sentineld.shim

# The planner is imported here, and torch for the models' names: no shim shall wake between the two.
sentineld.shim.disarm()
