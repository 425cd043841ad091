// The flags of gpt, and whether they fit the workers.
#pragma once

#include <fmt/format.h>

#include <filesystem>
#include <string>

#include "examples/common/flags.h"
#include "examples/common/program.h"
#include "examples/gpt/mesh_flag.h"

namespace ddprun::examples {

inline constexpr int kCharacters = 128;  // ASCII's

struct GptFlags {
  std::filesystem::path data = DDPRUN_EXAMPLES_DATA "/harbour/harbour.txt", checkpoint;
  MeshFlag mesh;
  int steps = 60, save_every = 10, batch_size = 16;
  int length = 64, width = 64, heads = 4, layers = 4;
  int micro_batches = 4;
  double lr = 0.003;

  void add_to(Flags& flags) {
    flags.text("--mesh", "AXES", std::string(kAcceptedMesh),
               "axes of the grid, as data=2,tensor=2 (data, of all workers)",
               [this](const std::string& given) { return read_mesh(mesh, given); });
    flags.path("--data", data, "file", "a text (the one that is shipped)");
    flags.path("--checkpoint", checkpoint, "folder",
               "save here; go on from it if it is there (none)");
    flags.count("--save-every", save_every, "steps from one checkpoint to the next (10)");
    flags.count("--steps", steps, "batches (60)");
    flags.count("--batch-size", batch_size, "texts a step, of all workers together (16)");
    flags.count("--length", length, "characters of a text (64)");
    flags.count("--width", width, "features of a character (64)");
    flags.count("--heads", heads, "of attention (4)");
    flags.count("--layers", layers, "blocks of attention and two linear layers (4)");
    flags.count("--micro-batches", micro_batches, "of a worker's batch, in a pipeline (4)");
    flags.rate("--lr", lr, "learning rate (0.003)");
  }
};

inline void require_multiple(const char* flag, int value, const std::string& of, int divisor) {
  if (value % divisor != 0)
    throw UsageError(fmt::format("{}: {} given, expected a multiple of {}", flag, value, of));
}

// The mesh of so many workers. Throws UsageError, the same on all of them, for what does not
// divide.
inline MeshFlag checked_mesh(const GptFlags& given, int workers) {
  MeshFlag mesh = given.mesh;
  if (mesh.axes.empty()) read_mesh(mesh, fmt::format("data={}", workers));
  if (mesh.workers() != workers)
    throw UsageError(fmt::format(
        "--mesh: '{}' given, expected axes whose product is the {} workers", mesh.text, workers));
  const int places = mesh.along("data") * mesh.along("sharded"), tensor = mesh.along("tensor");
  const int stages = mesh.along("pipeline"), rows = places * given.micro_batches;
  require_multiple("--batch-size", given.batch_size,
                   fmt::format("{}, the workers with other texts", places), places);
  if (mesh.has("pipeline"))
    require_multiple(
        "--batch-size", given.batch_size,
        fmt::format("{}, which are the workers with other texts times --micro-batches={}", rows,
                    given.micro_batches),
        rows);
  require_multiple("--layers", given.layers, fmt::format("the mesh's pipeline={}", stages), stages);
  require_multiple("--heads", given.heads, fmt::format("the mesh's tensor={}", tensor), tensor);
  require_multiple("--width", given.width, fmt::format("--heads={}", given.heads), given.heads);
  if (kCharacters % tensor != 0)
    throw UsageError(fmt::format(
        "--mesh: '{}' given, expected a tensor axis that divides the {} characters of ASCII",
        mesh.text, kCharacters));
  return mesh;
}

}  // namespace ddprun::examples
