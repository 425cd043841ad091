// torch.distributed's operations on tensors. Their results are compared with PyTorch's own in
// python_parity/collectives_parity_test.py.
#include <ddprun/tensor_collective.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "tests/worker/torch_ranks.h"

namespace ddprun::worker {
namespace {

void expect_words(const std::string& said, std::string_view words) {
  EXPECT_NE(said.find(words), std::string::npos) << said;
}

TEST(TensorCollective, ReduceTensorsOfAnyStrides) {
  run_torch_ranks(2, [](Collective& collective) {
    TensorCollective tensors(collective);
    const at::Tensor wide = torch::arange(12, torch::kDouble).view({3, 4}) + collective.rank();
    const at::Tensor turned = wide.t();  // 4 rows of 3, not contiguous
    tensors.all_reduce(turned);
    EXPECT_TRUE(at::equal(wide, 2 * torch::arange(12, torch::kDouble).view({3, 4}) + 1));
    const at::Tensor number = torch::tensor(2.5F);
    tensors.all_reduce(number, Reduction::kAverage);
    EXPECT_EQ(number.item<float>(), 2.5F);
    tensors.all_reduce(torch::empty({0}));
  });
}

TEST(TensorCollective, ReduceMoreThanOnePiece) {
  run_torch_ranks(2, [](Collective& collective) {
    TensorCollective tensors(collective);
    constexpr std::int64_t kElements = (std::int64_t{20} << 20) + 7;  // 80 MiB
    const at::Tensor large = torch::full({kElements}, 1.0F + static_cast<float>(collective.rank()));
    tensors.all_reduce(large);
    EXPECT_TRUE(at::equal(large, torch::full({kElements}, 3.0F)));
  });
}

TEST(TensorCollective, AreCalledByTheProgramsNames) {
  run_torch_ranks(2, [](Collective& collective) {
    TensorCollective tensors(collective);
    const auto loss = torch::ones({6});
    tensors.all_reduce(loss, Reduction::kMax, "loss");
    auto launched = tensors.launch_all_reduce(loss, Reduction::kSum, "later");
    tensors.wait(launched);
    tensors.reduce_scatter(loss, Reduction::kSum, "rows");
    tensors.broadcast(loss, 0, "start");
    tensors.all_gather(loss, "all");
    collective.rank() == 0 ? tensors.send(loss, 1, "chunk") : tensors.receive(loss, 0, "chunk");
    const std::string record = collective.flight_record();
    for (const char* name : {"loss", "later", "rows", "start", "all", "chunk"})
      EXPECT_NE(record.find(fmt::format("\"name\": \"{}\"", name)), std::string::npos) << name;
    const auto said = message_of([&] {
      if (collective.rank() == 0)
        tensors.all_reduce(loss, Reduction::kSum, "loss");
      else
        tensors.broadcast(loss, 0, "start");
    });
    EXPECT_NE(said.find("sum of loss, 24 bytes (operation "), std::string::npos) << said;
    EXPECT_NE(said.find("broadcast of start, 24 bytes (operation "), std::string::npos) << said;
  });
}

// Metrics are gathered in an InferenceMode, and the next step is not in it.
TEST(TensorCollective, ServeAnInferenceModeAndTheStepsAfterIt) {
  run_torch_ranks(2, [](Collective& collective) {
    TensorCollective tensors(collective);
    {
      const c10::InferenceMode evaluation;
      const auto all = tensors.all_gather(torch::full({3}, collective.rank()));
      EXPECT_TRUE(at::equal(all[1], torch::full({3}, 1)));
      tensors.all_reduce(torch::ones({3}));
      EXPECT_TRUE(at::equal(tensors.all_to_all(torch::ones({2})), torch::ones({2})));
    }
    const at::Tensor sum = torch::ones({3});
    tensors.all_reduce(sum);
    EXPECT_TRUE(at::equal(sum, torch::full({3}, 2.0F)));
    EXPECT_EQ(tensors.all_gather(sum).size(), 2U);
  });
}

TEST(TensorCollective, LaunchManyAndWaitLater) {
  run_torch_ranks(3, [](Collective& collective) {
    TensorCollective tensors(collective);
    for (int round = 0; round < 3; ++round) {  // the second round uses the memory of the first
      std::vector<at::Tensor> mine;
      std::vector<TensorCollective::Work> launched;
      for (int i = 0; i < 20; ++i) {
        mine.push_back(torch::full({i + 1}, collective.rank() + i, torch::kLong));
        launched.push_back(tensors.launch_all_reduce(mine.back(), Reduction::kMax));
      }
      for (auto& one : launched) tensors.wait(one);
      for (int i = 0; i < 20; ++i)
        EXPECT_TRUE(at::equal(mine[i], torch::full({i + 1}, 2 + i, torch::kLong)));
    }
  });
}

TEST(TensorCollective, WaitOnceForEach) {
  run_torch_ranks(2, [](Collective& collective) {
    TensorCollective tensors(collective);
    const at::Tensor tensor = torch::ones({2, 3}).t();
    auto launched = tensors.launch_all_reduce(tensor);
    tensors.wait(launched);
    tensor.fill_(5);
    tensors.wait(launched);  // nothing
    EXPECT_EQ(first_of(tensor), 5.0F);
    auto moved = tensors.launch_all_reduce(tensor);
    auto there = std::move(moved);
    tensors.wait(moved);  // NOLINT(bugprone-use-after-move): nothing
    EXPECT_EQ(first_of(tensor), 5.0F);
    tensors.wait(there);
    EXPECT_EQ(first_of(tensor), 10.0F);
    TensorCollective::Work none;
    tensors.wait(none);
  });
}

// One rank gives up before it has launched anything: the memory that the other took is lost on
// both.
TEST(TensorCollective, GoOnAfterAReset) {
  run_torch_ranks(2, [](Collective& collective) {
    TensorCollective tensors(collective);
    tensors.all_reduce(torch::ones(3));
    if (collective.rank() == 0) {
      auto launched = tensors.launch_all_reduce(torch::ones(3));
      expect_words(message_of([&] { tensors.wait(launched); }), "has called reset()");
      collective.reset();
      expect_words(message_of([&] { tensors.wait(launched); }), "a reset() since");
    } else {
      collective.reset();
    }
    const at::Tensor after = torch::ones(3);
    tensors.all_reduce(after);
    EXPECT_EQ(first_of(after), 2.0F);
  });
}

TEST(TensorCollective, KnowConjugatesAndNegatives) {
  run_torch_ranks(2, [](Collective& collective) {
    TensorCollective tensors(collective);
    const at::Tensor numbers = torch::complex(torch::ones(3), torch::full(3, 2.0F));
    const at::Tensor sum = numbers.clone();
    tensors.all_reduce(sum.conj());  // written through the view
    EXPECT_TRUE(at::equal(sum, 2 * numbers));
    const at::Tensor sent = collective.rank() == 0 ? numbers.conj() : numbers.clone();
    tensors.broadcast(sent, 0);
    EXPECT_TRUE(at::equal(sent, numbers.conj().resolve_conj()));
    const at::Tensor imaginary = at::imag(numbers.conj());  // its memory has the opposite sign
    if (collective.rank() == 0) return tensors.send(imaginary, 1);
    const at::Tensor got = torch::zeros(3);
    tensors.receive(got, 0);
    EXPECT_TRUE(at::equal(got, torch::full(3, -2.0F)));
  });
}

TEST(TensorCollective, LeaveTheGraphAlone) {
  run_torch_ranks(2, [](Collective& collective) {
    TensorCollective tensors(collective);
    const at::Tensor weight = torch::ones(3, torch::requires_grad());
    tensors.all_reduce(weight);
    EXPECT_TRUE(weight.requires_grad());
    EXPECT_EQ(first_of(weight), 2.0F);
    EXPECT_FALSE(tensors.all_gather(weight)[0].requires_grad());
    const at::Tensor rows = torch::ones(2, torch::requires_grad());
    EXPECT_FALSE(tensors.all_to_all(rows).requires_grad());
    const at::Tensor result = torch::zeros(2, torch::requires_grad());
    auto launched = tensors.launch_all_to_all(result, rows);
    tensors.wait(launched);
    EXPECT_TRUE(at::equal(result, torch::ones(2)));
  });
}

TEST(TensorCollective, GatherScatterBroadcastAndSend) {
  run_torch_ranks(3, [](Collective& collective) {
    TensorCollective tensors(collective);
    const int rank = collective.rank();
    const at::Tensor mine = torch::full({2, 2}, rank, torch::kBool);
    const auto all = tensors.all_gather(mine);
    ASSERT_EQ(all.size(), 3U);
    EXPECT_TRUE(at::equal(all[2], torch::ones({2, 2}, torch::kBool)));
    EXPECT_TRUE(at::equal(all[0], torch::zeros({2, 2}, torch::kBool)));

    const at::Tensor rows = torch::arange(12, torch::kInt).view({6, 2}) * (rank + 1);
    const at::Tensor part = tensors.reduce_scatter(rows);
    EXPECT_TRUE(
        at::equal(part, 6 * torch::arange(12, torch::kInt).view({6, 2}).narrow(0, 2 * rank, 2)));

    // Large enough for several pieces, whose ends lie inside of a part. The tensor stays as it is.
    const at::Tensor wide = torch::full({3, 3'000'017}, rank + 1, torch::kDouble);
    wide.select(1, 3'000'016).fill_(rank + 10);
    const at::Tensor row = tensors.reduce_scatter(wide);
    EXPECT_TRUE(
        at::equal(row.narrow(1, 0, 3'000'016), torch::full({1, 3'000'016}, 6.0, torch::kDouble)));
    EXPECT_EQ(row[0][3'000'016].item<double>(), 33.0);
    EXPECT_EQ(wide[0][0].item<double>(), rank + 1);
    const at::Tensor complex = torch::full({3, 2}, c10::complex<double>(rank, 1));
    EXPECT_TRUE(at::equal(tensors.reduce_scatter(complex),
                          torch::full({1, 2}, c10::complex<double>(3, 3))));

    const at::Tensor turned = torch::full({2, 3}, rank).t();
    tensors.broadcast(turned, 1);
    EXPECT_TRUE(at::equal(turned, torch::ones({3, 2}, torch::kLong)));

    if (rank == 0) tensors.send(torch::full({5}, 7.0), 2);
    if (rank != 2) return;
    const at::Tensor got = torch::zeros({10}).slice(0, 0, 10, 2);
    tensors.receive(got, 0);
    EXPECT_TRUE(at::equal(got, torch::full({5}, 7.0)));
  });
}

// Before any rank has heard of it: the ranks go on.
TEST(TensorCollective, RefuseWhatTheyCannotTake) {
  run_torch_ranks(2, [](Collective& collective) {
    TensorCollective tensors(collective);
    expect_words(message_of([&] { tensors.all_reduce(torch::ones(2, torch::kBool)); }),
                 "all_reduce: Bool cannot be reduced");
    expect_words(
        message_of([&] { tensors.all_reduce(torch::ones(2, torch::kInt), Reduction::kAverage); }),
        "the average of Int is no Int");
    expect_words(message_of([&] {
                   tensors.all_reduce(torch::ones(2, torch::kComplexFloat), Reduction::kMax);
                 }),
                 "ComplexFloat has no order");
    expect_words(message_of([&] {
                   tensors.reduce_scatter(torch::ones({3, 2}));
                 }),
                 "Float [3, 2] cannot be cut into 2 parts");
    expect_words(message_of([&] { tensors.broadcast(torch::ones(1), 2); }),
                 "there is no rank 2 among 2");
    expect_words(message_of([&] { tensors.all_reduce(torch::ones(2).to_sparse()); }), "sparse");
    expect_words(message_of([&] { tensors.all_reduce(torch::ones(1).expand({4})); }),
                 "share memory");
    expect_words(message_of([&] { tensors.send(torch::ones(1), collective.rank()); }),
                 "cannot be the peer");
    const at::Tensor fine = torch::ones(1);
    tensors.all_reduce(fine);
    EXPECT_EQ(first_of(fine), 2.0F);
  });
}

// Rank r's tensor of these: its elements count up from 100·r.
at::Tensor counted(at::IntArrayRef sizes, at::ScalarType type, int rank) {
  std::int64_t elements = 1;
  for (const std::int64_t size : sizes) elements *= size;
  return (torch::arange(elements, torch::kLong) + 100 * rank).to(type).view(sizes);
}

TEST(TensorCollective, GatherAnyShapeAndTypeOnAnyNumberOfRanks) {
  for (const int world : {2, 3, 4}) {
    run_torch_ranks(world, [world](Collective& collective) {
      TensorCollective tensors(collective);
      const std::vector<std::vector<std::int64_t>> shapes = {{}, {1}, {7}, {3, 5}, {0}, {2, 0, 3}};
      for (const auto type : {torch::kFloat, torch::kDouble, torch::kHalf, torch::kBFloat16,
                              torch::kLong, torch::kByte, torch::kBool, torch::kComplexFloat}) {
        for (const auto& sizes : shapes) {
          const auto all = tensors.all_gather(counted(sizes, type, collective.rank()));
          ASSERT_EQ(all.size(), static_cast<std::size_t>(world));
          for (int rank = 0; rank < world; ++rank)
            EXPECT_TRUE(at::equal(all[static_cast<std::size_t>(rank)], counted(sizes, type, rank)))
                << type << " of rank " << rank << ": " << all[static_cast<std::size_t>(rank)];
        }
      }
      const at::Tensor wide = counted({4, 6}, torch::kFloat, collective.rank());
      const auto turned = tensors.all_gather(wide.t().slice(0, 1, 6, 2));
      const auto last = counted({4, 6}, torch::kFloat, world - 1).t().slice(0, 1, 6, 2);
      EXPECT_TRUE(at::equal(turned.back(), last));
      EXPECT_TRUE(turned.back().is_contiguous());
    });
  }
}

TEST(TensorCollective, GatherMoreThanOnePiece) {
  run_torch_ranks(3, [](Collective& collective) {
    TensorCollective tensors(collective);
    constexpr std::int64_t kElements = (std::int64_t{6} << 20) + 7;  // 24 MiB of each rank
    const at::Tensor mine = torch::arange(kElements, torch::kInt) + collective.rank();
    for (int round = 0; round < 2; ++round) {  // the second one uses the memory of the first
      const auto all = tensors.all_gather(mine);
      for (int rank = 0; rank < 3; ++rank)
        EXPECT_TRUE(at::equal(all[static_cast<std::size_t>(rank)],
                              torch::arange(kElements, torch::kInt) + rank));
    }
  });
}

TEST(TensorCollective, GatherInOneOperationOfAllRanks) {
  run_torch_ranks(3, [](Collective& collective) {
    TensorCollective tensors(collective);
    tensors.all_gather(torch::ones({5}), "all");
    const std::string record = collective.flight_record();
    std::size_t found = 0;
    for (std::size_t at = record.find("\"name\": \"all\""); at != std::string::npos;
         at = record.find("\"name\": \"all\"", at + 1))
      ++found;
    EXPECT_EQ(found, 1U) << record;
  });
}

TEST(TensorCollective, GatherTensorsOfOneShapeOnly) {
  run_torch_ranks(2, [](Collective& collective) {
    TensorCollective tensors(collective);
    const auto said = message_of([&] { tensors.all_gather(torch::ones(collective.rank() + 1)); });
    expect_words(said, collective.rank() == 0
                           ? "all_gather: rank 0 brings Float [1], rank 1 brings Float [2]"
                           : "all_gather: rank 1 brings Float [2], rank 0 brings Float [1]");
  });
}

// How many rows rank `from` gives to rank `to`: other ones for each, and none for some.
std::int64_t rows_between(int from, int to) { return (from + 2 * to + 2) % 4; }

// The rows of rank `from` for rank `to`.
at::Tensor rows_for(at::IntArrayRef sizes, at::ScalarType type, int from, int to) {
  std::int64_t begin = 0;
  for (int before = 0; before < to; ++before) begin += rows_between(from, before);
  return counted(sizes, type, from).narrow(0, begin, rows_between(from, to));
}

TEST(TensorCollective, ExchangeRowsOfAnyTypeAndNumber) {
  for (const int world : {1, 2, 3, 4}) {
    run_torch_ranks(world, [world](Collective& collective) {
      TensorCollective tensors(collective);
      const int rank = collective.rank();
      const auto sizes_of = [&](int from, std::int64_t width) {
        std::int64_t rows = 0;
        for (int to = 0; to < world; ++to) rows += rows_between(from, to);
        return std::vector<std::int64_t>{rows, width};
      };
      std::vector<std::int64_t> rows;
      for (int to = 0; to < world; ++to) rows.push_back(rows_between(rank, to));
      for (const auto type : {torch::kFloat, torch::kDouble, torch::kHalf, torch::kBFloat16,
                              torch::kLong, torch::kByte, torch::kBool, torch::kComplexFloat}) {
        for (const std::int64_t width : {1, 5, 0}) {
          const auto mine = counted(sizes_of(rank, width), type, rank);
          std::vector<at::Tensor> expected;
          for (int from = 0; from < world; ++from)
            expected.push_back(rows_for(sizes_of(from, width), type, from, rank));
          const at::Tensor wanted = torch::cat(expected);
          EXPECT_TRUE(at::equal(tensors.all_to_all(mine, rows), wanted)) << type << " " << width;
          const at::Tensor wide = torch::zeros({wanted.size(0), 2 * width}, mine.options());
          const at::Tensor result = wide.slice(1, 0, 2 * width, 2);  // not in a row
          auto launched = tensors.launch_all_to_all(result, mine.t().contiguous().t(), rows);
          tensors.wait(launched);
          EXPECT_TRUE(at::equal(result, wanted)) << type << " " << width;
        }
      }
      const at::Tensor even = counted({2 * world, 3}, torch::kInt, rank);
      const at::Tensor got = tensors.all_to_all(even);
      for (int from = 0; from < world; ++from)
        EXPECT_TRUE(at::equal(got.narrow(0, 2 * from, 2),
                              counted({2 * world, 3}, torch::kInt, from).narrow(0, 2 * rank, 2)));
    });
  }
}

TEST(TensorCollective, ExchangeMoreThanOnePiece) {
  run_torch_ranks(3, [](Collective& collective) {
    TensorCollective tensors(collective);
    const int rank = collective.rank();
    constexpr std::int64_t kMost = (std::int64_t{6} << 20) + 7;  // 24 MiB from 0 to 2
    const std::vector<std::int64_t> rows =
        rank == 0 ? std::vector<std::int64_t>{5, 0, kMost} : std::vector<std::int64_t>{rank, 2, 1};
    const std::int64_t all = rows[0] + rows[1] + rows[2];
    for (int round = 0; round < 2; ++round) {  // the second one uses the memory of the first
      const at::Tensor mine = torch::arange(all, torch::kInt) + 1000 * rank;
      const at::Tensor got = tensors.all_to_all(mine, rows, "rows");
      const at::Tensor wanted = rank == 2
                                    ? torch::cat({torch::arange(kMost, torch::kInt) + 5,
                                                  torch::tensor({1003}), torch::tensor({2004})})
                                : rank == 1 ? torch::tensor({1001, 1002, 2002, 2003})
                                            : torch::tensor({0, 1, 2, 3, 4, 1000, 2000, 2001});
      EXPECT_TRUE(at::equal(got, wanted.to(torch::kInt))) << rank;
    }
    EXPECT_NE(collective.flight_record().find("\"name\": \"rows\""), std::string::npos);
  });
}

// Several are under way at once, and the results are no plain rows.
TEST(TensorCollective, LaunchEachOperationAndWaitLater) {
  run_torch_ranks(3, [](Collective& collective) {
    TensorCollective tensors(collective);
    const int rank = collective.rank();
    const at::Tensor mine = counted({6, 2}, torch::kFloat, rank);
    const at::Tensor gathered = torch::zeros({2, 18}).t();
    const at::Tensor part = torch::zeros({2, 2}).t();
    const at::Tensor rows = torch::zeros({6, 2});
    std::vector<TensorCollective::Work> launched;
    launched.push_back(tensors.launch_all_gather(gathered, mine));
    launched.push_back(tensors.launch_reduce_scatter(part, mine));
    launched.push_back(tensors.launch_all_to_all(rows, mine));
    for (auto& one : launched) tensors.wait(one);
    std::vector<at::Tensor> of;
    for (int from = 0; from < 3; ++from) of.push_back(counted({6, 2}, torch::kFloat, from));
    EXPECT_TRUE(at::equal(gathered, torch::cat(of)));
    EXPECT_TRUE(at::equal(part, (of[0] + of[1] + of[2]).narrow(0, 2 * rank, 2)));
    EXPECT_TRUE(
        at::equal(rows, torch::cat({of[0].narrow(0, 2 * rank, 2), of[1].narrow(0, 2 * rank, 2),
                                    of[2].narrow(0, 2 * rank, 2)})));
  });
}

TEST(TensorCollective, LaunchMoreThanOnePiece) {
  run_torch_ranks(2, [](Collective& collective) {
    TensorCollective tensors(collective);
    const int rank = collective.rank();
    constexpr std::int64_t kMost = (std::int64_t{10} << 20) + 6;  // of two: 80 MiB
    const auto of = [&](int from) { return torch::arange(2 * kMost, torch::kFloat) + 3 * from; };
    const at::Tensor mine = of(rank);
    const at::Tensor sum = mine.clone();
    const at::Tensor part = torch::zeros({kMost});
    const at::Tensor half = mine.narrow(0, 0, kMost).clone();
    const at::Tensor gathered = torch::zeros({2 * kMost});
    const at::Tensor rows = torch::zeros({2 * kMost});
    std::vector<TensorCollective::Work> launched;
    launched.push_back(tensors.launch_all_reduce(sum));
    launched.push_back(tensors.launch_reduce_scatter(part, mine));
    launched.push_back(tensors.launch_all_gather(gathered, half));
    launched.push_back(tensors.launch_all_to_all(rows, mine));
    for (auto& one : launched) tensors.wait(one);
    const at::Tensor both = of(0) + of(1);
    EXPECT_TRUE(at::equal(sum, both));
    EXPECT_TRUE(at::equal(part, both.narrow(0, rank * kMost, kMost)));
    EXPECT_TRUE(
        at::equal(gathered, torch::cat({of(0).narrow(0, 0, kMost), of(1).narrow(0, 0, kMost)})));
    EXPECT_TRUE(at::equal(rows, torch::cat({of(0).narrow(0, rank * kMost, kMost),
                                            of(1).narrow(0, rank * kMost, kMost)})));
  });
}

// A rank that brings nothing is told by the others, and tells them.
TEST(TensorCollective, TellAllRanksOfOneThatBringsNothing) {
  run_torch_ranks(2, [](Collective& collective) {
    TensorCollective tensors(collective);
    const std::int64_t elements = collective.rank() == 0 ? 0 : 4;
    const at::Tensor mine = torch::ones({elements});
    expect_words(message_of([&] { tensors.all_to_all(mine); }), "they do different things");
  });
}

// Before any rank has heard of it: the ranks go on.
TEST(TensorCollective, RefuseResultsAndRowsThatDoNotFit) {
  run_torch_ranks(2, [](Collective& collective) {
    TensorCollective tensors(collective);
    const at::Tensor mine = torch::ones({4, 3});
    const auto refusal = [&](const std::vector<std::int64_t>& rows) {
      return message_of([&] { tensors.all_to_all(mine, rows); });
    };
    EXPECT_EQ(refusal({4}), "all_to_all: 1 counts of rows, and there are 2 ranks");
    EXPECT_EQ(refusal({3, 2}), "all_to_all: rows [3, 2] are not those of Float [4, 3]");
    EXPECT_EQ(refusal({-1, 5}), "all_to_all: rows [-1, 5] are not those of Float [4, 3]");
    EXPECT_EQ(refusal({1, 2}), "all_to_all: rows [1, 2] are not all of Float [4, 3]");
    expect_words(message_of([&] { tensors.all_to_all(torch::ones({3})); }),
                 "all_to_all: Float [3] cannot be cut into 2 parts");
    expect_words(message_of([&] {
                   tensors.all_to_all(torch::tensor(1.0F), {{0, 0}});
                 }),
                 "all_to_all: a number has no rows");
    expect_words(message_of([&] {
                   tensors.launch_all_gather(torch::ones({4, 3}), mine);
                 }),
                 "all_gather: the result is Float [4, 3], and 24 elements of Float come");
    expect_words(message_of([&] {
                   tensors.launch_reduce_scatter(torch::ones({2, 3}, torch::kDouble), mine);
                 }),
                 "reduce_scatter: the result is Double [2, 3], and 6 elements of Float come");
    expect_words(message_of([&] {
                   tensors.launch_all_to_all(torch::ones({4, 2}), mine);
                 }),
                 "all_to_all: the result is Float [4, 2], and rows of Float [4, 3] come");
    expect_words(message_of([&] { tensors.launch_all_to_all(mine, mine); }),
                 "all_to_all: the result shares memory with the tensor");
    tensors.all_to_all(mine);
  });
}

// All ranks are told, by the same words, and go on.
TEST(TensorCollective, TellAllRanksOfRowsThatAreUnlike) {
  run_torch_ranks(2, [](Collective& collective) {
    TensorCollective tensors(collective);
    const bool first = collective.rank() == 0;
    const std::vector<std::int64_t> rows{1, 1};
    expect_words(message_of([&] {
                   tensors.all_to_all(torch::ones({2, first ? 2 : 3}), rows);
                 }),
                 first ? "rank 0 brings rows of Float [2], rank 1 brings rows of Float [3]"
                       : "rank 1 brings rows of Float [3], rank 0 brings rows of Float [2]");
    const at::Tensor result = torch::ones({first ? 3 : 2, 2});
    EXPECT_EQ(message_of([&] {
                tensors.launch_all_to_all(result, torch::ones({2, 2}), rows);
              }),
              "all_to_all: the result of rank 0 has 3 rows, and 2 come");
    tensors.all_to_all(torch::ones({2, 2}), rows);
  });
}

}  // namespace
}  // namespace ddprun::worker
