# SPDX-License-Identifier: Apache-2.0
"""The demo's first part: trains in less memory than needed, with sentineld or with Linux swap."""

import sentineld.shim

# The measuring process imports sentineld and torch; importing torch must not activate the shim.
sentineld.shim.disarm()
