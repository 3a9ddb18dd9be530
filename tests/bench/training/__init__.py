# SPDX-License-Identifier: Apache-2.0
"""bench-train: step times under each policy on emulated tiers."""

import sentineld.shim

# This process imports sentineld and torch; importing torch must not activate the shim here.
sentineld.shim.disarm()
