# SPDX-License-Identifier: Apache-2.0
"""Attaches the module to this process. Page faults stay hooked until the process is killed."""

from __future__ import annotations

import fcntl
import os
import signal

from sentineld.observe import uapi
from sentineld.observe.pidfd import start_time_ticks

attach = uapi.Attach(
    pid=os.getpid(),
    uid=os.getuid(),
    start_ticks=start_time_ticks(os.getpid()),
    log_records=uapi.LOG_RECORDS_MIN,
)
fcntl.ioctl(os.open("/dev/sentinel", os.O_RDWR), uapi.IOC_ATTACH, attach)
print("held", flush=True)
signal.pause()
