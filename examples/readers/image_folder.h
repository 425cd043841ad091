// A folder of images with a folder for each class: `class/name.jpg`, as of ImageNet and its small
// sisters. It lists files and opens none. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/result.h"

namespace ddprun::worker {

struct ImageFolder {
  struct File {
    std::filesystem::path path;
    std::int64_t label = 0;  // the number of its class
  };
  std::vector<std::string> classes;  // the folders' names, sorted
  std::vector<File> files;  // by class, then sorted by folder and name: torchvision's order

  std::size_t count() const { return files.size(); }
};

// The `.jpg`, `.jpeg` and `.png` files, in small or capital letters, of each folder below `root`.
// The folders below that count, too. Errors name the folder: not there, no classes, a class without
// images.
Result<ImageFolder> list_image_folder(const std::filesystem::path& root);

}  // namespace ddprun::worker
