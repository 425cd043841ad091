// UCI's Adult table as tensors. One thread reads; batch() may be called from several.
#pragma once

#include <ATen/ATen.h>
#include <ddprun/data_loader.h>
#include <ddprun/readers.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace ddprun::examples {

struct AdultBatch {
  at::Tensor numbers;  // [batch, 6] float
  at::Tensor codes;    // [batch, 8] int64
  at::Tensor targets;  // [batch] int64: 1 for more than 50,000

  std::size_t size() const { return static_cast<std::size_t>(targets.size(0)); }
  AdultBatch to(at::Device device) const {
    return {numbers.to(device), codes.to(device), targets.to(device)};
  }
};

class AdultTable {
 public:
  AdultTable(const readers::TableScale& scale, const readers::CsvTable& table) {
    const auto scaled = scale.scale(table);
    const auto rows = static_cast<std::int64_t>(table.rows);
    std::vector<std::int64_t> labels;
    // The test file ends its labels with a dot.
    for (const auto& label : table.categories.back())
      labels.push_back(label.starts_with(">50K") ? 1 : 0);
    all_ = {at::tensor(scaled.numbers).view({rows, -1}), at::tensor(scaled.codes).view({rows, -1}),
            at::tensor(labels)};
    all_.codes = all_.codes.narrow(1, 0, all_.codes.size(1) - 1).contiguous();  // without the label
  }

  std::size_t size() const { return all_.size(); }
  std::int64_t number_columns() const { return all_.numbers.size(1); }
  AdultBatch batch(const BatchRequest& request) const {
    const auto rows =
        at::tensor(std::vector<std::int64_t>(request.indices.begin(), request.indices.end()));
    return {all_.numbers.index_select(0, rows), all_.codes.index_select(0, rows),
            all_.targets.index_select(0, rows)};
  }

 private:
  AdultBatch all_;
};

struct Adults {
  AdultTable train, held_out;
  std::vector<std::int64_t> code_counts;  // of each category column
};

inline readers::TableLayout adult_layout() {
  using readers::ColumnKind;
  constexpr auto kNumber = ColumnKind::kNumber, kCategory = ColumnKind::kCategory;
  return {.columns = {{"age", kNumber},
                      {"workclass", kCategory},
                      {"fnlwgt", kNumber},
                      {"education", kCategory},
                      {"education-num", kNumber},
                      {"marital-status", kCategory},
                      {"occupation", kCategory},
                      {"relationship", kCategory},
                      {"race", kCategory},
                      {"sex", kCategory},
                      {"capital-gain", kNumber},
                      {"capital-loss", kNumber},
                      {"hours-per-week", kNumber},
                      {"native-country", kCategory},
                      {"income", kCategory}},
          .csv = {.comment = '|'}};
}

inline Adults read_adults(const std::filesystem::path& folder) {
  const auto train = readers::read_csv(folder / "adult.data", adult_layout());
  const auto held_out = readers::read_csv(folder / "adult.test", adult_layout());
  const readers::TableScale scale(train);
  auto counts = scale.code_counts();
  counts.pop_back();  // the label's
  return {AdultTable(scale, train), AdultTable(scale, held_out), std::move(counts)};
}

}  // namespace ddprun::examples
