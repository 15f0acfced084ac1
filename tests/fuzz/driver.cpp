// Runs a fuzz target without libFuzzer: every file of a folder of seeds, then mutations of them
// from a fixed seed. It finds less than coverage-guided fuzzing (make fuzz), but runs with any
// compiler, and the same inputs every time.
//
//   NAME_fuzz SEEDS EXECUTIONS

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size);

namespace {

using bytes = std::vector<std::uint8_t>;

constexpr std::size_t longest_input = 4096;

std::vector<bytes> read_seeds(std::filesystem::path const& folder) {
  std::vector<std::filesystem::path> paths;
  for (auto const& entry : std::filesystem::directory_iterator(folder)) {
    paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  std::vector<bytes> seeds;
  for (auto const& path : paths) {
    std::ifstream file(path, std::ios::binary);
    seeds.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return seeds;
}

class mutator {
 public:
  explicit mutator(std::vector<bytes> const& seeds) : seeds_(seeds) {}

  bytes next() {
    bytes input = seeds_[below(seeds_.size())];
    for (std::size_t changes = 1 + below(4); changes > 0; --changes) change(input);
    input.resize(std::min(input.size(), longest_input));
    return input;
  }

 private:
  std::size_t below(std::size_t limit) { return random_() % limit; }

  void change(bytes& input) {
    auto const place = [&](bytes const& of) {
      return static_cast<std::ptrdiff_t>(below(of.size() + 1));
    };
    std::size_t const kind = below(5);
    if (input.empty() || kind == 0) {  // a new byte
      input.insert(input.begin() + place(input), static_cast<std::uint8_t>(random_()));
    } else if (kind == 1) {  // one bit
      input[below(input.size())] ^= static_cast<std::uint8_t>(1U << below(8));
    } else if (kind == 2) {  // a byte that the grammars care about
      constexpr char words[] = "0123456789-+.eE{}[]\":,\\/ \n\0\x7f\xff";
      input[below(input.size())] = static_cast<std::uint8_t>(words[below(sizeof(words))]);
    } else if (kind == 3) {  // a piece less
      std::ptrdiff_t const begin = place(input), end = place(input);
      input.erase(input.begin() + std::min(begin, end), input.begin() + std::max(begin, end));
    } else {  // a piece of another seed
      bytes const& other = seeds_[below(seeds_.size())];
      std::ptrdiff_t const begin = place(other), end = place(other);
      input.insert(input.begin() + place(input), other.begin() + std::min(begin, end),
                   other.begin() + std::max(begin, end));
    }
  }

  std::vector<bytes> const& seeds_;
  std::minstd_rand random_{1};
};

void run(bytes const& input) { LLVMFuzzerTestOneInput(input.data(), input.size()); }

}  // namespace

int main(int count, char** arguments) {
  if (count != 3) {
    std::fprintf(stderr, "usage: %s SEEDS EXECUTIONS\n", arguments[0]);
    return 2;
  }
  std::vector<bytes> const seeds = read_seeds(arguments[1]);
  if (seeds.empty()) {
    std::fprintf(stderr, "%s holds no seeds\n", arguments[1]);
    return 2;
  }
  for (bytes const& seed : seeds) run(seed);
  long const executions = std::strtol(arguments[2], nullptr, 10);
  mutator source(seeds);
  for (long i = 0; i < executions; ++i) run(source.next());
  std::printf("%zu seeds and %ld mutations\n", seeds.size(), executions);
  return 0;
}
