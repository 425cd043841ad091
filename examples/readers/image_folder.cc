#include <ddprun/readers.h>

#include <algorithm>
#include <array>
#include <system_error>
#include <tuple>

#include "examples/readers/file_text.h"

namespace ddprun::readers {
namespace {

bool is_image(const std::filesystem::path& path) {
  std::string ending = path.extension().string();
  for (char& c : ending) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + 32);
  }
  constexpr std::array kEndings{".jpg", ".jpeg", ".png"};
  return std::ranges::find(kEndings, ending) != kEndings.end();
}

Error unreadable(const std::filesystem::path& folder, const std::error_code& error) {
  return {ErrorCode::kNotFound, "read " + folder.string() + ": " + error.message()};
}

Result<std::vector<std::filesystem::path>> images_below(const std::filesystem::path& folder) {
  std::error_code error;
  std::vector<std::filesystem::path> paths;
  constexpr auto kLinks = std::filesystem::directory_options::follow_directory_symlink;
  for (std::filesystem::recursive_directory_iterator entry(folder, kLinks, error), end;
       !error && entry != end; entry.increment(error)) {
    if (entry->is_regular_file() && is_image(entry->path())) paths.push_back(entry->path());
  }
  if (error) return unreadable(folder, error);
  if (paths.empty()) return broken_file(folder, "no images (.jpg, .jpeg, .png)");
  std::ranges::sort(paths, {}, [](const std::filesystem::path& path) {
    return std::tuple(path.parent_path().string(), path.filename().string());
  });
  return paths;
}

Result<ImageFolder> try_list_image_folder(const std::filesystem::path& root) {
  ImageFolder all;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(root, error), end; !error && entry != end;
       entry.increment(error)) {
    if (entry->is_directory()) all.classes.push_back(entry->path().filename().string());
  }
  if (error) return unreadable(root, error);
  if (all.classes.empty()) return broken_file(root, "no folders, expected one for each class");
  std::ranges::sort(all.classes);
  for (std::size_t label = 0; label < all.classes.size(); ++label) {
    const auto paths = images_below(root / all.classes[label]);
    if (!paths) return paths.error();
    for (const auto& path : *paths) all.files.push_back({path, static_cast<std::int64_t>(label)});
  }
  return all;
}

}  // namespace

ImageFolder list_image_folder(const std::filesystem::path& root) {
  return value_or_throw(try_list_image_folder(root));
}

}  // namespace ddprun::readers
