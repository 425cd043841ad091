#include "agent/replicas/replica_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

namespace ddprun::agent {
namespace {

using Words = std::vector<std::uint64_t>;

constexpr std::uint64_t kMagic = 0x31'53'41'43'49'4C'50'52;
const std::string kNames = "a\nb b";

// Three slots: step 20, none, step 10. Two tensors.
Words good_words() {
  return {kMagic, 2,  4, 77, 160, kNames.size(),
          3,      0,                   // head
          20,     50, 0, 51, 10,  52,  // slots
          1,      2,  3, 4,  5,   6};  // hashes
}

std::string write(const Words& words) {
  std::string path = testing::TempDir() + "replicas_" + std::to_string(::getpid());
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(words.data()),
             static_cast<std::streamsize>(words.size() * sizeof(std::uint64_t)));
  file << kNames;
  return path;
}

TEST(ReplicaFile, ChecksComeByStepAndAnEmptySlotIsNone) {
  const auto checks = read_replica_checks(write(good_words()));
  ASSERT_TRUE(checks);
  EXPECT_EQ(checks->set, 77U);
  EXPECT_EQ(checks->members, 4);
  EXPECT_EQ(checks->checks, (std::vector<ReplicaCheck>{{10, 52}, {20, 50}}));
}

TEST(ReplicaFile, HashesAndNamesAreOfTheStep) {
  const std::string path = write(good_words());
  const auto hashes = read_replica_hashes(path, 10);
  ASSERT_TRUE(hashes);
  EXPECT_EQ(hashes->set, 77U);
  EXPECT_EQ(hashes->hashes, (Words{5, 6}));
  EXPECT_EQ(hashes->names, (std::vector<std::string>{"a", "b b"}));
  EXPECT_FALSE(read_replica_hashes(path, 30));
  EXPECT_FALSE(read_replica_hashes(path, 0)) << "an empty slot is no step";
}

TEST(ReplicaFile, WhatIsNotWellFormedIsNoFile) {
  EXPECT_FALSE(read_replica_checks("/nonexistent/replicas"));
  for (const std::size_t at : {0, 1, 2, 4, 5, 6}) {  // any set is one
    Words words = good_words();
    words[at] = ~std::uint64_t{0};
    const std::string path = write(words);
    const bool is_of_names = at == 4;  // their place
    EXPECT_EQ(read_replica_checks(path).has_value(), is_of_names) << at;
    EXPECT_FALSE(read_replica_hashes(path, 10)) << at;
  }
  for (std::size_t size = 0; size < 14; ++size) {
    Words words = good_words();
    words.resize(size);
    const std::string path = write(words);
    std::ofstream(path, std::ios::trunc | std::ios::binary)
        .write(reinterpret_cast<const char*>(words.data()),
               static_cast<std::streamsize>(words.size() * sizeof(std::uint64_t)));
    EXPECT_FALSE(read_replica_checks(path)) << size;
  }
}

}  // namespace
}  // namespace ddprun::agent
