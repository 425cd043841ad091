#include "worker/collective/shm/shm_segment.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <string>

#include "tests/support/temporary_folder.h"
#include "worker/collective/shm/shm_layout.h"

namespace ddprun::worker {
namespace {

class ShmSegments : public FolderTest {};

TEST_F(ShmSegments, AreOnlyOpenedWhereNobodyCanMakeThemShorter) {
  const std::string path = (folder / "file").string();
  std::ofstream(path) << std::string(kPageBytes, '.');
  const auto opened = ShmSegment::open(path, kPageBytes);
  ASSERT_TRUE(opened.has_error());
  EXPECT_EQ(opened.error().code(), ErrorCode::kProtocol) << opened.error().message();
}

TEST_F(ShmSegments, LieAtHugePagesAndAreSeenByWhoOpensThem) {
  auto made = ShmSegment::create(3 * kHugePageBytes, "a test");
  ASSERT_TRUE(made.has_value()) << made.error().message();
  auto opened = ShmSegment::open(made->name(), 3 * kHugePageBytes);
  ASSERT_TRUE(opened.has_value()) << opened.error().message();
  for (const ShmSegment* segment : {&*made, &*opened})
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(segment->data()) % kHugePageBytes, 0U);
  made->enter_pages();
  made->data()[3 * kHugePageBytes - 1] = std::byte{7};
  EXPECT_EQ(opened->data()[3 * kHugePageBytes - 1], std::byte{7});
  EXPECT_TRUE(ShmSegment::open(made->name(), kHugePageBytes).has_error()) << "it is longer";
  const std::string name = made->name();
  made->close_file();
  const auto late = ShmSegment::open(name, 3 * kHugePageBytes);
  ASSERT_TRUE(late.has_error());
  EXPECT_NE(late.error().message().find("one pid namespace"), std::string::npos)
      << late.error().message();
}

TEST_F(ShmSegments, TakeThePagesThatAreReservedAndNoOthers) {
  constexpr std::size_t kPart = 64 * kPageBytes;
  auto made = ShmSegment::create(2 * kPart, "a test");
  ASSERT_TRUE(made.has_value()) << made.error().message();
  const auto taken = [&] {
    struct stat status {};
    EXPECT_EQ(::stat(made->name().c_str(), &status), 0);
    return static_cast<std::size_t>(status.st_blocks) * 512;
  };
  EXPECT_EQ(taken(), 0U);
  ASSERT_TRUE(made->reserve(kPart, kPart, false, "a test").has_value());
  EXPECT_EQ(taken(), kPart);
  ASSERT_TRUE(made->reserve(0, kPart, false, "a test").has_value());
  EXPECT_EQ(taken(), 2 * kPart);
}

}  // namespace
}  // namespace ddprun::worker
