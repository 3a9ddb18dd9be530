# SPDX-License-Identifier: Apache-2.0
"""The truth test: compares the module's log with the known accesses of random programs.

`programs` draws programs, `runner` runs them in the guest (with the C files of this
folder; truth.h describes the language), `outcome` parses the results (the log and the
accesses), and `judge` compares the two. `kept/` holds regression tests.
"""
