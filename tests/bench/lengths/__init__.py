# SPDX-License-Identifier: Apache-2.0
"""Measures trainings whose sequences have another length in each step."""
