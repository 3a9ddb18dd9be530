# SPDX-License-Identifier: Apache-2.0
"""Measures trainings whose sequence length differs between steps."""
