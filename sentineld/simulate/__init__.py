# SPDX-License-Identifier: Apache-2.0
"""Recorded steps replayed under any policy, in virtual time."""
