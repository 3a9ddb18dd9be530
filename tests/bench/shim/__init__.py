# SPDX-License-Identifier: Apache-2.0
"""bench-shim: the shim's overhead on training."""

import sentineld.shim

# This process imports sentineld and torch; importing torch must not activate the shim here.
sentineld.shim.disarm()
