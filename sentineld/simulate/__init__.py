# SPDX-License-Identifier: Apache-2.0
"""Replay recorded steps under any policy in virtual time."""
