#include "agent/standby/worker_pages.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#include "base/file_handle.h"
#include "tests/support/temporary_folder.h"

namespace ddprun::agent {
namespace {

TEST_F(FolderTest, PagesAreSharedWithTheWorkers) {
  const std::string path = (folder / "pages").string();
  auto pages = WorkerPages::make(path, 2);
  ASSERT_TRUE(pages.has_value()) << pages.error().message();
  EXPECT_EQ(pages->variable(0), "0:384:262144:" + path);
  EXPECT_EQ(pages->variable(1), "192:262528:262144:" + path);
  // As a worker does it.
  const FileHandle file(::open(path.c_str(), O_RDWR));
  void* const memory = ::mmap(nullptr, 384, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  ASSERT_NE(memory, MAP_FAILED);
  auto& mine = static_cast<WorkerPage*>(memory)[1];
  mine.steps = 7;
  mine.first_line = 8;
  mine.notes_size = 9;
  EXPECT_EQ(pages->page(1).steps, 7U);
  EXPECT_EQ(pages->page(0).steps, 0U);
  pages->begin(1, true);
  EXPECT_EQ(mine.steps, 0U);
  EXPECT_EQ(mine.first_line, 0U);
  EXPECT_EQ(mine.notes_size, 9U);
  pages->begin(1, false);
  EXPECT_EQ(mine.notes_size, 0U);
  ::munmap(memory, 384);
}

TEST(WorkerPages, NameThePathThatCannotBeMade) {
  const auto pages = WorkerPages::make("/nowhere/pages", 1);
  ASSERT_FALSE(pages.has_value());
  EXPECT_NE(pages.error().message().find("/nowhere/pages"), std::string::npos);
}

}  // namespace
}  // namespace ddprun::agent
