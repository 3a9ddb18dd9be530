/* SPDX-License-Identifier: Apache-2.0 */
/* Definitions that older kernel headers lack: UFFDIO_MOVE (before Linux 6.8) and USERFAULTFD_IOC_NEW
   (before 6.1). See include/uapi/linux/userfaultfd.h. */
#ifndef SENTINELD_SHIM_UFFD_ABI_H
#define SENTINELD_SHIM_UFFD_ABI_H

#include <linux/types.h>
#include <linux/userfaultfd.h>

#ifndef UFFD_FEATURE_MOVE
#define UFFD_FEATURE_MOVE (1 << 16)
struct uffdio_move {
	__u64 dst;
	__u64 src;
	__u64 len;
	__u64 mode;
	__s64 move;
};
#define UFFDIO_MOVE _IOWR(UFFDIO, 0x05, struct uffdio_move)
#endif
#ifndef USERFAULTFD_IOC_NEW
#define USERFAULTFD_IOC_NEW _IO(0xAA, 0x00)
#endif

#endif
