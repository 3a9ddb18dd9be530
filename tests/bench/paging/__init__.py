# SPDX-License-Identifier: Apache-2.0
"""bench-paging: trainings in less memory than they need, under sentineld and its alternatives."""

import sentineld.shim

# This process imports sentineld and torch; importing torch must not activate the shim here.
sentineld.shim.disarm()
