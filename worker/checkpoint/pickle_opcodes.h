// The opcodes of Python's pickle format (CPython 3.11, Lib/pickletools.py). The reader knows those
// of the enum; the others have names only, for messages.
#pragma once

#include <cstdint>
#include <string_view>

namespace ddprun::worker {

enum class Opcode : std::uint8_t {
  kMark = '(',
  kStop = '.',
  kBinInt = 'J',
  kBinInt1 = 'K',
  kBinInt2 = 'M',
  kNone = 'N',
  kBinPersId = 'Q',
  kReduce = 'R',
  kBinUnicode = 'X',
  kBinFloat = 'G',
  kAppend = 'a',
  kBuild = 'b',
  kGlobal = 'c',
  kAppends = 'e',
  kBinGet = 'h',
  kLongBinGet = 'j',
  kBinPut = 'q',
  kLongBinPut = 'r',
  kSetItem = 's',
  kTuple = 't',
  kSetItems = 'u',
  kEmptyList = ']',
  kEmptyTuple = ')',
  kEmptyDict = '}',
  kProto = 0x80,
  kNewObject = 0x81,  // read where objects are passed over
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kNewTrue = 0x88,
  kNewFalse = 0x89,
  kLong1 = 0x8A,
  // Protocol 4, which a distributed checkpoint's metadata has.
  kShortBinUnicode = 0x8C,
  kStackGlobal = 0x93,
  kMemoize = 0x94,
  kFrame = 0x95,
};

// The name of an opcode that is not read. "?" where Python has none.
constexpr std::string_view name_of_unread(std::uint8_t opcode) {
  struct Row {
    std::uint8_t opcode;
    std::string_view name;
  };
  constexpr Row kRows[] = {{'0', "POP"},
                           {'1', "POP_MARK"},
                           {'2', "DUP"},
                           {'B', "BINBYTES"},
                           {'C', "SHORT_BINBYTES"},
                           {'F', "FLOAT"},
                           {'I', "INT"},
                           {'L', "LONG"},
                           {'P', "PERSID"},
                           {'S', "STRING"},
                           {'T', "BINSTRING"},
                           {'U', "SHORT_BINSTRING"},
                           {'V', "UNICODE"},
                           {'d', "DICT"},
                           {'g', "GET"},
                           {'i', "INST"},
                           {'l', "LIST"},
                           {'o', "OBJ"},
                           {'p', "PUT"},
                           {0x81, "NEWOBJ"},
                           {0x82, "EXT1"},
                           {0x83, "EXT2"},
                           {0x84, "EXT4"},
                           {0x8B, "LONG4"},
                           {0x8C, "SHORT_BINUNICODE"},
                           {0x8D, "BINUNICODE8"},
                           {0x8E, "BINBYTES8"},
                           {0x8F, "EMPTY_SET"},
                           {0x90, "ADDITEMS"},
                           {0x91, "FROZENSET"},
                           {0x92, "NEWOBJ_EX"},
                           {0x93, "STACK_GLOBAL"},
                           {0x94, "MEMOIZE"},
                           {0x95, "FRAME"},
                           {0x96, "BYTEARRAY8"},
                           {0x97, "NEXT_BUFFER"},
                           {0x98, "READONLY_BUFFER"}};
  for (const Row& row : kRows) {
    if (row.opcode == opcode) return row.name;
  }
  return "?";
}

}  // namespace ddprun::worker
