#include <ddprun/readers.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/examples/readers/tried.h"
#include "tests/examples/temporary_folder.h"

namespace ddprun::readers {
namespace {

using examples::TemporaryFolder;
using examples::write_bytes;
using Cells = std::vector<std::string>;

template <typename T>
std::string error_of(const Result<T>& result) {
  return result ? "no error" : result.error().message();
}

std::string record(char label) { return label + std::string(3072, static_cast<char>(label + 1)); }

TEST(Cifar10, ReadsTheFiveFilesAndTheTest) {
  const TemporaryFolder folder;
  for (const char* number : {"1", "2", "3", "4", "5"}) {
    write_bytes(folder.path() / ("data_batch_" + std::string(number) + ".bin"),
                record(static_cast<char>(number[0] - '0')) + record(0));
  }
  write_bytes(folder.path() / "test_batch.bin", record(9));
  const auto train = tried([&] { return read_cifar10(folder.path(), "train"); });
  ASSERT_TRUE(train) << error_of(train);
  EXPECT_EQ(train->labels, (std::vector<std::uint8_t>{1, 0, 2, 0, 3, 0, 4, 0, 5, 0}));
  EXPECT_EQ(train->pixels.size(), 10U * 3 * 32 * 32);
  EXPECT_EQ(train->pixels[0], 2);
  EXPECT_EQ(train->pixels[3072], 1);
  EXPECT_EQ(tried([&] { return read_cifar10(folder.path(), "test"); })->count(), 1U);
}

TEST(Cifar10, NamesTheFileThatIsWrong) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "test_batch.bin";
  const std::string prefix = "read " + path.string() + ": ";
  EXPECT_EQ(error_of(tried([&] { return read_cifar10(folder.path(), "test"); })),
            prefix + "No such file or directory");
  write_bytes(path, record(1) + "x");
  EXPECT_EQ(error_of(tried([&] { return read_cifar10(folder.path(), "test"); })),
            prefix + "3074 bytes, expected records of 3073");
  write_bytes(path, "");
  EXPECT_EQ(error_of(tried([&] { return read_cifar10(folder.path(), "test"); })),
            prefix + "0 bytes, expected records of 3073");
  write_bytes(path, record(1) + record(10));
  EXPECT_EQ(error_of(tried([&] { return read_cifar10(folder.path(), "test"); })),
            prefix + "image 1: label 10, expected 0 to 9");
}

TEST(Csv, TakesQuotesBlanksAndEndsOfLines) {
  const auto rows = tried([&] {
    return parse_csv("a, b ,c\r\n\r\n\"x, \"\"y\"\"\nz\" ,, 3\n|note\nlast,,", {.comment = '|'});
  });
  ASSERT_TRUE(rows) << error_of(rows);
  ASSERT_EQ(rows->size(), 3U);
  EXPECT_EQ((*rows)[0].cells, (Cells{"a", "b", "c"}));
  EXPECT_EQ((*rows)[1].cells, (Cells{"x, \"y\"\nz", "", "3"}));
  EXPECT_EQ((*rows)[1].line, 3U);
  EXPECT_EQ((*rows)[2].cells, (Cells{"last", "", ""}));
  EXPECT_EQ((*rows)[2].line, 6U);
  EXPECT_EQ(tried([&] { return parse_csv("h\n1\n", {.header = true}); })->size(), 1U);
  EXPECT_EQ(tried([&] {
              return parse_csv(
                  "\xEF\xBB\xBF"
                  "7,8\n");
            })
                ->front()
                .cells,
            (Cells{"7", "8"}));
  EXPECT_EQ(tried([&] { return parse_csv(""); })->size(), 0U);
}

TEST(Csv, NamesTheLineOfABrokenQuote) {
  EXPECT_EQ(error_of(tried([&] { return parse_csv("a\nb,\"c"); })),
            "line 2: a quote is not closed");
  EXPECT_EQ(error_of(tried([&] { return parse_csv("\"a\"b"); })),
            "line 1: text after a quoted cell");
}

class CsvTables : public testing::Test {
 protected:
  Result<CsvTable> read(const std::string& text) const {
    write_bytes(path(), text);
    return tried([&] {
      return read_csv(path(), {.columns = {{"age", ColumnKind::kNumber},
                                           {"weight", ColumnKind::kIgnored},
                                           {"work", ColumnKind::kCategory}}});
    });
  }
  std::filesystem::path path() const { return folder_.path() / "t.csv"; }
  TemporaryFolder folder_;
};

TEST_F(CsvTables, ScalesByTheTrainingTableAlone) {
  const auto training = read("10, x, b\n30, y, a\n?, z, ?\n20, , b\n");
  ASSERT_TRUE(training) << error_of(training);
  const TableScale scale(*training);
  EXPECT_EQ(scale.code_counts(), (std::vector<std::int64_t>{3}));
  EXPECT_EQ(scale.number_columns(), 1U);
  const auto scaled = scale.scale(*training);
  const float step = static_cast<float>(10 / std::sqrt(200.0 / 3));
  EXPECT_EQ(scaled.numbers, (std::vector<float>{-step, step, 0, 0}));
  EXPECT_EQ(scaled.codes, (std::vector<std::int64_t>{2, 1, 0, 2}));
  const auto other = scale.scale(*read("20,,c\n"));  // c is unknown
  EXPECT_EQ(other.numbers, (std::vector<float>{0}));
  EXPECT_EQ(other.codes, (std::vector<std::int64_t>{0}));
}

TEST(Csv, KeepsNoMoreCellsOfARowThanAreWanted) {
  std::size_t kept = 0, counted = 0;
  const auto take = [&](const CsvRow& row, std::size_t count) {
    kept = row.cells.size(), counted = count;
    return std::string("too many");
  };
  const auto read = tried([&] {
    return read_csv_rows("a\n" + std::string(1'000'000, ','), {.header = true}, 3, take);
  });
  EXPECT_EQ(error_of(read), "line 2: too many");
  EXPECT_EQ(kept, 3U);
  EXPECT_EQ(counted, 1'000'001U);
}

TEST_F(CsvTables, NamesLineAndColumn) {
  const std::string prefix = "read " + path().string() + ": ";
  EXPECT_EQ(error_of(read("1,2,a\n1,a\n")), prefix + "line 2: 2 cells, expected 3");
  EXPECT_EQ(error_of(read("1x,2,a\n")), prefix + "line 1: column age: '1x' is not a number");
  EXPECT_EQ(error_of(read("nan,2,a\n")), prefix + "line 1: column age: 'nan' is not a number");
  EXPECT_EQ(error_of(read("\n")), prefix + "no rows");
}

TEST(TextFolders, AreReadByLabelAndName) {
  const TemporaryFolder folder;
  for (const char* label : {"neg", "pos"}) {
    std::filesystem::create_directory(folder.path() / label);
    for (const char* name : {"2_1.txt", "10_1.txt", "note.md"})
      write_bytes(folder.path() / label / name, std::string(label) + name);
  }
  const auto texts = tried([&] { return read_text_folders(folder.path()); });
  ASSERT_TRUE(texts) << error_of(texts);
  EXPECT_EQ(texts->texts, (Cells{"neg10_1.txt", "neg2_1.txt", "pos10_1.txt", "pos2_1.txt"}));
  EXPECT_EQ(texts->labels, (std::vector<std::int64_t>{0, 0, 1, 1}));
  EXPECT_EQ(error_of(tried([&] {
              return read_text_folders(folder.path(), {"neg", "none"});
            })),
            "read " + (folder.path() / "none").string() + ": No such file or directory");
}

TEST(Vocabulary, RanksByCountThenAlphabet) {
  EXPECT_EQ(words_of("It's GOOD,good <br />2nd\xC3\xA9"),
            (Cells{"it's", "good", "good", "br", "2nd"}));
  const Vocabulary words({"b a b", "c a c", "d"}, 3);
  EXPECT_EQ(words.size(), 4U);
  EXPECT_EQ(words.codes_of("A b c d", 10), (std::vector<std::int64_t>{1, 2, 3, 0}));
  EXPECT_EQ(words.codes_of("a b c d", 2), (std::vector<std::int64_t>{1, 2}));
  EXPECT_EQ(words.codes_of("…", 2), (std::vector<std::int64_t>{0}));
}

}  // namespace
}  // namespace ddprun::readers
