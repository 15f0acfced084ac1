#include "cases/expert_sample.hpp"

#include <algorithm>

namespace moe64::cases {

expert_sample experts_within(std::vector<index_t> const& used, double budget,
                             std::function<double(index_t expert)> const& cost) {
  expert_sample sample;
  if (used.empty()) return sample;
  if (cost(used.back()) > budget) {
    sample.experts = {used.back()};
    if (used.size() > 1) sample.experts.insert(sample.experts.begin(), used.front());
    double whole = 0.0;
    for (index_t const expert : sample.experts) whole += cost(expert);
    sample.share = budget / whole;
    return sample;
  }
  double spent = 0.0;
  for (std::size_t i = 0; i < used.size(); ++i) {
    index_t const expert = i == 0 ? used.back() : used[i - 1];
    if (i > 0 && spent + cost(expert) > budget) continue;
    spent += cost(expert);
    sample.experts.push_back(expert);
  }
  std::sort(sample.experts.begin(), sample.experts.end());
  return sample;
}

}  // namespace moe64::cases
