#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "examples/gpt/options.h"

namespace ddprun::examples {
namespace {

// The axes of a mesh as text; "refused" for one that is not accepted.
std::string read(std::string_view text) {
  MeshFlag mesh;
  if (!read_mesh(mesh, text)) return "refused";
  std::string said;
  for (const MeshAxis& axis : mesh.all_axes()) said += fmt::format("{}{} ", axis.name, axis.ranks);
  return said;
}

// The line that this mesh of so many workers is refused with; empty: it is accepted.
std::string refusal(std::string_view mesh, int workers, GptFlags flags = {}) {
  if (!mesh.empty()) {
    EXPECT_TRUE(read_mesh(flags.mesh, mesh));
  }
  try {
    checked_mesh(flags, workers);
    return {};
  } catch (const UsageError& error) {
    return error.what();
  }
}

TEST(GptMesh, KeepsTheOrderAndAddsTheOtherAxesInFront) {
  EXPECT_EQ(read("data=2,tensor=3"), "sharded1 pipeline1 data2 tensor3 ");
  EXPECT_EQ(read("tensor=2,sharded=8"), "data1 pipeline1 tensor2 sharded8 ");
  EXPECT_EQ(read("sharded=2,pipeline=2"), "data1 tensor1 sharded2 pipeline2 ");
  EXPECT_EQ(read("tensor=1024"), "data1 sharded1 pipeline1 tensor1024 ");
}

TEST(GptMesh, RefusesOtherAxesAndNumbers) {
  for (const char* text :
       {"", "data", "data=", "data=0", "data=-1", "data=x", "data=2x", "rows=2", "=2", "data=2,",
        ",data=2", "data=2,,tensor=2", "data=2;tensor=2", "data=1,data=2", "data=2,sharded=2",
        "sharded=2,pipeline=2,data=1", "tensor=1025", "Data=2", "tensor=2,tensor=2"})
    EXPECT_EQ(read(text), "refused") << text;
}

TEST(GptMesh, OfAllWorkersIsDataParallelUnlessSomethingIsSaid) {
  EXPECT_EQ(checked_mesh({}, 4).text, "data=4");
  EXPECT_EQ(checked_mesh({}, 1).text, "data=1");
}

TEST(GptMesh, RefusesWhatDoesNotDivideInOneLine) {
  EXPECT_EQ(refusal("data=2,tensor=2", 4), "");
  EXPECT_EQ(refusal("data=2,tensor=2", 8),
            "--mesh: 'data=2,tensor=2' given, expected axes whose product is the 8 workers");
  EXPECT_EQ(refusal("tensor=3", 3), "--heads: 4 given, expected a multiple of the mesh's tensor=3");
  EXPECT_EQ(refusal("", 2, {.batch_size = 3}),
            "--batch-size: 3 given, expected a multiple of 2, the workers with other texts");
  EXPECT_EQ(refusal("sharded=3", 3),
            "--batch-size: 16 given, expected a multiple of 3, the workers with other texts");
  EXPECT_EQ(refusal("data=2,pipeline=3", 6),
            "--layers: 4 given, expected a multiple of the mesh's pipeline=3");
  EXPECT_EQ(refusal("data=2,pipeline=2", 4, {.micro_batches = 3}),
            "--batch-size: 16 given, expected a multiple of 6, which are the workers with other "
            "texts times --micro-batches=3");
  EXPECT_EQ(refusal("sharded=4,pipeline=2", 8, {.micro_batches = 8}),
            "--batch-size: 16 given, expected a multiple of 32, which are the workers with other "
            "texts times --micro-batches=8");
  EXPECT_EQ(refusal("", 2, {.micro_batches = 3}), "");
  EXPECT_EQ(refusal("tensor=3", 3, {.width = 36, .heads = 3}),
            "--mesh: 'tensor=3' given, expected a tensor axis that divides the 128 characters of "
            "ASCII");
  EXPECT_EQ(refusal("", 1, {.width = 30}), "--width: 30 given, expected a multiple of --heads=4");
}

}  // namespace
}  // namespace ddprun::examples
