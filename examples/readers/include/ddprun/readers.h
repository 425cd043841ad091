// Readers of the usual data sets, as plain values. They read CSV tables, IDX and CIFAR-10 images,
// folders of photographs, and folders of texts. They know no rank and no LibTorch, and split no
// data. A component of its own: find_package(ddprun COMPONENTS readers), target ddprun::readers.
// Errors are ReadError. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace ddprun::readers {

// The reason why a file or folder cannot be read. what() is one line that names the file and its
// fault.
class ReadError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Tables of text with a comma between cells: numbers, categories, and cells that are missing. The
// meaning of a column is learnt from the training table alone (TableScale) and used for the others
// too. Pure but for read_csv(). Any thread.

// Options of the readers of CSV.
struct CsvOptions {
  char comment = '\0';  // lines that begin with it do not count; 0: none
  bool header = false;  // the first row names the columns: left out
};
// A row of a CSV text.
struct CsvRow {
  std::size_t line = 0;            // in the file, from 1
  std::vector<std::string> cells;  // without quotes and spaces around them
};
// Returns the cells of a CSV text, row by row (RFC 4180). Quoted cells may hold commas, doubled
// quotes and ends of lines. Spaces around a cell do not count, nor do empty lines and lines that
// begin with `comment`. The error names the line.
std::vector<CsvRow> parse_csv(std::string_view text, const CsvOptions& options = {});

// Reads a CSV text row after row: each goes to `take`, and is gone. A row keeps its first
// `cells_max` cells alone, so a line of a million commas costs nothing. `count` is how many it has.
// `take` returns why a row is refused, or an empty text; the error has it behind the row's line.
void read_csv_rows(std::string_view text, const CsvOptions& options, std::size_t cells_max,
                   const std::function<std::string(CsvRow row, std::size_t count)>& take);

// The use of a column.
enum class ColumnKind : std::uint8_t { kNumber, kCategory, kIgnored };

// A column of a table.
struct Column {
  std::string name;                       // for messages
  ColumnKind kind = ColumnKind::kNumber;  // of all its cells
};

// The form of a table in a file.
struct TableLayout {
  std::vector<Column> columns;  // all of a row, in order
  std::string missing =
      "?";              // what stands in a cell that has no value; an empty cell has none either
  CsvOptions csv = {};  // of the file
};

// A table as it was read: columns by kind, in the layout's order.
struct CsvTable {
  std::vector<std::vector<std::optional<double>>> numbers;  // [number column][row]
  std::vector<std::vector<std::string>> categories;  // [category column][row]; empty: missing

  std::size_t rows = 0;  // of each column
};

// Reads a table. Errors name file, line and column: a row with another number of cells, a cell that
// is no number.
CsvTable read_csv(const std::filesystem::path& path, const TableLayout& layout);

// The form of a table for a model: numbers with mean 0 and deviation 1, categories as codes.
struct ScaledTable {
  std::vector<float> numbers;       // [rows, number columns]; 0 where missing
  std::vector<std::int64_t> codes;  // [rows, category columns]; 0 where missing or unknown
  std::size_t rows = 0;             // as of the table
};

// The scale of a table's columns, learnt from the training table. Sums run down the rows in double
// precision, so that another program can get the same bits.
class TableScale {
 public:
  // Learns mean and deviation of each number column, and the names of each category column.
  explicit TableScale(const CsvTable& training);

  // Returns a table for a model. `table` must have the layout of the training table.
  ScaledTable scale(const CsvTable& table) const;

  // Returns how many codes each category column has: its categories, and 0 for what is missing.
  std::vector<std::int64_t> code_counts() const;
  // Returns how many number columns there are.
  std::size_t number_columns() const { return means_.size(); }

 private:
  std::vector<double> means_, deviations_;
  std::vector<std::vector<std::string>> names_;  // [category column], sorted: code n is names[n-1]
};

// Small images of one size with their labels, all in memory. The readers of IDX files (MNIST and
// its kin) and of CIFAR-10 give them. Without LibTorch; the readers split no data. Any thread.

// Images with their labels.
struct LabelledImages {
  std::size_t channels = 1;          // 1: grey; 3: red, green, blue
  std::size_t side = 0;              // pixels; images are square
  std::vector<std::uint8_t> pixels;  // [count, channels, side, side]
  std::vector<std::uint8_t> labels;  // [count], each 0 … classes-1

  // Returns the number of images.
  std::size_t count() const { return labels.size(); }
};

// The most images of an IDX set: a damaged header must not make us allocate without limit. The
// largest set of this layout has fewer images (EMNIST: 814,255).
inline constexpr std::size_t kMaxImages = 1'000'000;

// The form that an IDX set must have.
struct IdxOptions {
  std::size_t side = 28;     // pixels of width and height
  std::size_t classes = 10;  // labels are 0 … classes-1
};

// Reads one part ("train" or "t10k") of an IDX set in `folder`: MNIST, Fashion-MNIST, KMNIST. It
// reads the files `<part>-images-idx3-ubyte` and `<part>-labels-idx1-ubyte`, each with or without
// `.gz`. An IDX file is a magic number, one size a dimension, then the bytes. The magic number is
// 0x08 for bytes, then the number of dimensions. Numbers are 32 bits, big-endian. Errors name the
// file and its fault: missing, wrong magic number, another side, too many images, cut short. Other
// faults are more bytes than its header says, a label too high, unequal counts, no images.
LabelledImages read_idx(const std::filesystem::path& folder, const std::string& part,
                        const IdxOptions& options = {});

// Reads CIFAR-10's binary version: "train" is `data_batch_1.bin` … `data_batch_5.bin`, "test" is
// `test_batch.bin`. A record is a label and 3×32×32 bytes, red, green, blue. Errors name the
// file: missing, no whole records, a label above 9, empty.
LabelledImages read_cifar10(const std::filesystem::path& folder, const std::string& part);

// A folder of images with a folder for each class: `class/name.jpg`, as of ImageNet and its small
// sisters. It lists files and opens none. Any thread.

// The files of a folder of images.
struct ImageFolder {
  // An image that was not opened.
  struct File {
    std::filesystem::path path;  // begins with the root
    std::int64_t label = 0;      // the number of its class
  };
  std::vector<std::string> classes;  // the folders' names, sorted
  std::vector<File> files;  // by class, then sorted by folder and name: torchvision's order

  // Returns the number of images.
  std::size_t count() const { return files.size(); }
};

// Lists the `.jpg`, `.jpeg` and `.png` files, in small or capital letters, of each folder below
// `root`. The folders below that count, too. Errors name the folder: not there, no classes, a class
// without images.
ImageFolder list_image_folder(const std::filesystem::path& root);

// Photographs: JPEG and PNG to bytes, and what a model takes of them. Without LibTorch. Pure but
// for load_image(). Any thread.

// A photograph.
struct Image {
  std::size_t width = 0, height = 0;  // pixels
  std::vector<std::uint8_t> pixels;   // [height, width, 3]: red, green, blue
};

// The most pixels of a photograph: a header that says more would make us allocate without limit.
inline constexpr std::size_t kMaxImagePixels = std::size_t{100} << 20;

// Decodes a JPEG or a PNG; its first bytes say which. Grey images become colour; what is
// transparent is put on white. A JPEG may come out smaller, down to half, a quarter or an eighth,
// but with no side below `least_side`. That saves most of the work if a small picture is wanted. 0:
// as it is. The error says what is wrong with the bytes; a file that ends early is an error too.
Image decode_image(std::string_view bytes, std::size_t least_side = 0);

// Reads a file and decodes it. Errors name the file.
Image load_image(const std::filesystem::path& path, std::size_t least_side = 0);

// A part of an image, in shares of its width and height.
struct Crop {
  double left = 0, top = 0, width = 1, height = 1;  // 0 … 1
  bool mirrored = false;                            // left and right change places
};

// Returns the largest square in the middle.
Crop middle_square(const Image& image);

// Writes the part as side×side pixels by bilinear interpolation, [3, side, side]. Each is (value /
// 255 - mean) / deviation of its colour. These are ImageNet's, which most trained models want.
// `into` has 3·side·side elements.
void write_pixels(const Image& image, const Crop& crop, std::size_t side, std::span<float> into);

// Texts with labels, a folder for each label: IMDB's `neg/0_3.txt`, `pos/0_9.txt`. And words as
// numbers. Any thread.

// Texts with their labels.
struct LabelledTexts {
  std::vector<std::string> texts;    // one a file
  std::vector<std::int64_t> labels;  // the number of the folder in `folders`

  // Returns the number of texts.
  std::size_t count() const { return texts.size(); }
};

// Reads the `.txt` files of each folder below `root`, in the folders' order and sorted by name.
// Errors name what is not there, cannot be read, or has no texts.
LabelledTexts read_text_folders(const std::filesystem::path& root,
                                const std::vector<std::string>& folders = {"neg", "pos"});

// Returns the runs of letters, digits and apostrophes, in small letters. Letters are those of
// ASCII: other bytes part words.
std::vector<std::string> words_of(std::string_view text);

// The most frequent words of the training texts; of equally frequent ones those that come first in
// the alphabet. Code 0 is every other word.
class Vocabulary {
 public:
  // Counts the words of the texts, and keeps at most `most_words`.
  Vocabulary(const std::vector<std::string>& texts, std::size_t most_words);

  // Returns the codes of the text's first `most` words; {0} for a text without words.
  std::vector<std::int64_t> codes_of(std::string_view text, std::size_t most) const;
  // Returns the number of codes: the words, and 0.
  std::size_t size() const { return codes_.size() + 1; }

 private:
  std::unordered_map<std::string, std::int64_t> codes_;
};

}  // namespace ddprun::readers
