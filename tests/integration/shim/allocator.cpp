// SPDX-License-Identifier: Apache-2.0
/* An allocator that an extension could install. torch's tensors then bypass c10::alloc_cpu. */
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <cstdlib>
#include <cstring>

namespace
{

struct OtherAllocator final : c10::Allocator {
	c10::DataPtr allocate(size_t bytes) override
	{
		void *address = bytes ? std::aligned_alloc(64, (bytes + 63) / 64 * 64) : nullptr;

		return {address, address, &std::free, c10::Device(c10::DeviceType::CPU)};
	}

	c10::DeleterFnPtr raw_deleter() const override
	{
		return &std::free;
	}

	void copy_data(void *target, const void *source, size_t bytes) const override
	{
		std::memcpy(target, source, bytes);
	}
};

} // namespace

extern "C" void replace_allocator()
{
	static OtherAllocator other;

	c10::SetCPUAllocator(&other, UINT8_MAX);
}
