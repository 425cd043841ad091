// Tables of text with a comma between cells: numbers, categories, and cells that are missing. The
// meaning of a column is learnt from the training table alone (TableScale) and used for the others
// too. Pure but for read_csv(). Any thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace ddprun::worker {

// The cells of a CSV text, row by row (RFC 4180). Quoted cells may hold commas, doubled quotes and
// ends of lines. Spaces around a cell do not count, nor do empty lines and lines that begin with
// `comment`. The error names the line.
struct CsvOptions {
  char comment = '\0';  // none
  bool header = false;  // the first row names the columns: left out
};
struct CsvRow {
  std::size_t line = 0;  // in the file, from 1
  std::vector<std::string> cells;
};
Result<std::vector<CsvRow>> parse_csv(std::string_view text, const CsvOptions& options = {});

// The same, row after row: each goes to `take`, and is gone. A row keeps its first `cells_max`
// cells alone, so a line of a million commas costs nothing. `count` is how many it has. `take`
// returns why a row is refused, or an empty text; the error has it behind the row's line.
Result<void> read_csv_rows(std::string_view text, const CsvOptions& options, std::size_t cells_max,
                           const std::function<std::string(CsvRow row, std::size_t count)>& take);

enum class ColumnKind : std::uint8_t { kNumber, kCategory, kIgnored };

struct Column {
  std::string name;
  ColumnKind kind = ColumnKind::kNumber;
};

struct TableLayout {
  std::vector<Column> columns;
  std::string missing =
      "?";  // what stands in a cell that has no value; an empty cell has none either
  CsvOptions csv = {};
};

// The columns by kind, in the layout's order.
struct Table {
  std::vector<std::vector<std::optional<double>>> numbers;  // [number column][row]
  std::vector<std::vector<std::string>> categories;  // [category column][row]; empty: missing

  std::size_t rows = 0;
};

// Errors name file, line and column: a row with another number of cells, a cell that is no number.
Result<Table> read_csv(const std::filesystem::path& path, const TableLayout& layout);

// The form of a table for a model: numbers with mean 0 and deviation 1, categories as codes.
struct ScaledTable {
  std::vector<float> numbers;       // [rows, number columns]; 0 where missing
  std::vector<std::int64_t> codes;  // [rows, category columns]; 0 where missing or unknown
  std::size_t rows = 0;
};

// Learnt from the training table. Sums run down the rows in double precision, so that another
// program can get the same bits.
class TableScale {
 public:
  explicit TableScale(const Table& training);

  // The table must have the same layout.
  ScaledTable scale(const Table& table) const;

  // Codes of a category column, with 0 for what is missing: 1 + how many categories it has.
  std::vector<std::int64_t> code_counts() const;
  std::size_t number_columns() const { return means_.size(); }

 private:
  std::vector<double> means_, deviations_;
  std::vector<std::vector<std::string>> names_;  // [category column], sorted: code n is names[n-1]
};

}  // namespace ddprun::worker
