// The memory that this process uses, and a way to give back the rest. Any thread.
//
// A crowd of nodes leaves some 2,000 small blocks behind that live on. gRPC and Asio keep a
// socket's blocks for the next one. glibc's malloc has them among the blocks that are freed, so
// each holds a page back. ddprund is linked with jemalloc, which keeps blocks of one size together.
#pragma once

#include <cstdint>

namespace ddprun::daemon {

// Resident memory of this process; 0 if the kernel does not tell (proc(5), statm).
std::uint64_t memory_bytes();

// Gives freed memory back to the kernel: by jemalloc where the program is linked with it, else by
// glibc. It looks at all memory: for a quiet moment.
void give_memory_back();

// Reads in what the program only reads, its code and its constants. So a daemon that leads from one
// moment to the next need not read it from a disk first. Nothing holds the pages where memory is
// short. Without an effect before Linux 5.14 (madvise(2), MADV_POPULATE_READ): pages are read in
// when they are needed.
void read_program_in();

}  // namespace ddprun::daemon
