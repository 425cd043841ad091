// Film reviews as batches of word numbers. One thread reads; batch() may be called from several.
#pragma once

#include <ATen/ATen.h>
#include <ddprun/data_loader.h>
#include <ddprun/readers.h>

#include <cstdint>
#include <filesystem>
#include <utility>
#include <vector>

namespace ddprun::examples {

struct ReviewBatch {
  at::Tensor words;    // [all words of the batch] int64, one text after the other
  at::Tensor starts;   // [batch] int64: where each text begins in `words`
  at::Tensor targets;  // [batch] int64: 1 for a friendly one

  std::size_t size() const { return static_cast<std::size_t>(targets.size(0)); }
  ReviewBatch to(at::Device device) const {
    return {words.to(device), starts.to(device), targets.to(device)};
  }
};

class ReviewSet {
 public:
  ReviewSet(const readers::LabelledTexts& reviews, const readers::Vocabulary& vocabulary,
            std::size_t length)
      : labels_(reviews.labels) {
    for (const auto& text : reviews.texts) words_.push_back(vocabulary.codes_of(text, length));
  }

  std::size_t size() const { return labels_.size(); }
  ReviewBatch batch(const BatchRequest& request) const {
    std::vector<std::int64_t> words, starts, labels;
    for (const std::size_t index : request.indices) {
      starts.push_back(static_cast<std::int64_t>(words.size()));
      words.insert(words.end(), words_[index].begin(), words_[index].end());
      labels.push_back(labels_[index]);
    }
    return {at::tensor(words), at::tensor(starts), at::tensor(labels)};
  }

 private:
  std::vector<std::vector<std::int64_t>> words_;
  std::vector<std::int64_t> labels_;
};

struct Reviews {
  ReviewSet train, held_out;
  std::int64_t vocabulary_size = 0;
};

inline Reviews read_reviews(const std::filesystem::path& folder, std::size_t most_words,
                            std::size_t length) {
  const auto train = readers::read_text_folders(folder / "train");
  const auto held_out = readers::read_text_folders(folder / "test");
  const readers::Vocabulary vocabulary(train.texts, most_words);
  return {ReviewSet(train, vocabulary, length), ReviewSet(held_out, vocabulary, length),
          static_cast<std::int64_t>(vocabulary.size())};
}

}  // namespace ddprun::examples
