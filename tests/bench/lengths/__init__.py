# SPDX-License-Identifier: Apache-2.0
"""Measures trainings whose sequences have a different length in each step."""
