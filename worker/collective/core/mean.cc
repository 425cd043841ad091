#include <ddprun/metrics.h>

namespace ddprun {

double Mean::over(Collective& ranks) const { return means_over(ranks, {*this}).front(); }

std::vector<double> means_over(Collective& ranks, std::initializer_list<Mean> means) {
  std::vector<double> numbers;
  for (const Mean& mean : means) {
    numbers.push_back(mean.sum());
    numbers.push_back(mean.count());
  }
  ranks.sum(numbers);
  std::vector<double> found;
  for (std::size_t i = 0; i < numbers.size(); i += 2) found.push_back(numbers[i] / numbers[i + 1]);
  return found;
}

}  // namespace ddprun
