// Copies of any length between any places, and nothing beside them.
#include "worker/collective/kernels/copy_kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace ddprun::worker {
namespace {

TEST(CopyKernels, CopyEachByteAndNoOther) {
  const std::size_t most = kLargeCopyBytes + 300;
  std::vector<std::byte> from(most + 128);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 7 + i / 251);
  for (const std::size_t bytes :
       {std::size_t{0}, std::size_t{1}, std::size_t{100}, kLargeCopyBytes - 1, kLargeCopyBytes,
        kLargeCopyBytes + 1, most}) {
    for (const std::size_t to_shift : {0, 1, 16, 63, 64}) {
      for (const std::size_t from_shift : {0, 5, 32}) {
        std::vector<std::byte> to(most + 128, std::byte{0xEE});
        copy_bytes(to.data() + to_shift, from.data() + from_shift, bytes);
        const auto copied = to.begin() + static_cast<std::ptrdiff_t>(to_shift);
        const auto end = copied + static_cast<std::ptrdiff_t>(bytes);
        ASSERT_TRUE(std::equal(copied, end, from.begin() + static_cast<std::ptrdiff_t>(from_shift)))
            << bytes << " bytes from " << from_shift << " to " << to_shift;
        const auto is_untouched = [](std::byte byte) { return byte == std::byte{0xEE}; };
        ASSERT_TRUE(std::all_of(to.begin(), copied, is_untouched));
        ASSERT_TRUE(std::all_of(end, to.end(), is_untouched));
      }
    }
  }
}

}  // namespace
}  // namespace ddprun::worker
