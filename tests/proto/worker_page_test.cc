#include "proto/worker_page.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>

namespace ddprun {
namespace {

// The second page of a file, by a path with a colon in it.
TEST(WorkerPage, IsWrittenThroughTheFileThatTheVariableNames) {
  const std::string path = testing::TempDir() + "pages:" + std::to_string(::getpid());
  std::ofstream(path) << std::string(2 * kWorkerPageBytes, '\0');
  ::setenv(kWorkerPageVariable, ("64:128:0:" + path).c_str(), 1);
  note_first_line(own_worker_page());
  count_step(own_worker_page());
  count_step(own_worker_page());
  std::ifstream file(path, std::ios::binary);
  std::uint64_t words[16];
  file.read(reinterpret_cast<char*>(words), sizeof(words));
  EXPECT_EQ(words[0], 0U);
  EXPECT_EQ(words[8], 2U);          // steps
  EXPECT_GE(words[9], words[10]);   // the last one, the first one
  EXPECT_GE(words[10], words[11]);  // the first line
  EXPECT_GT(words[11], 0U);
  ::unlink(path.c_str());
}

}  // namespace
}  // namespace ddprun
