# SPDX-License-Identifier: Apache-2.0
"""What the shim costs a training."""

import sentineld.shim

# The planner is imported here, and torch for the models' names: no shim shall wake between the two.
sentineld.shim.disarm()
