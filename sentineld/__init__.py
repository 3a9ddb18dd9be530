# SPDX-License-Identifier: Apache-2.0
"""sentineld: tensor-aware memory tiering for deep-learning training."""

__version__ = "0.1.0"
