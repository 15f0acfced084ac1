#include "checkpoint/load/opened.hpp"

namespace moe64 {
namespace {

checkpoint::open_options files_of(checkpoint_options const& options) {
  checkpoint::open_options result;
  result.lenient = options.lenient;
  if (options.follow_links) result.links = checkpoint::link_rule::any;
  if (options.mapped) result.mode = checkpoint::read_mode::mapped;
  return result;
}

std::unique_ptr<checkpoint_reader::state> open_state(std::string const& path,
                                                     checkpoint_options const& options) {
  checkpoint::resolve_options resolving;
  resolving.assumed = checkpoint::parse_assumptions(options.assume);
  checkpoint::folder files = checkpoint::folder::open(path, files_of(options));
  checkpoint::resolved_checkpoint resolved = checkpoint::resolve(files, resolving);
  return std::make_unique<checkpoint_reader::state>(
      checkpoint_reader::state{path, std::move(files), std::move(resolved)});
}

}  // namespace

checkpoint_reader::checkpoint_reader(std::string const& path, checkpoint_options const& options)
    : state_(open_state(path, options)) {}
checkpoint_reader::checkpoint_reader(checkpoint_reader&&) noexcept = default;
checkpoint_reader& checkpoint_reader::operator=(checkpoint_reader&&) noexcept = default;
checkpoint_reader::~checkpoint_reader() = default;

std::string const& checkpoint_reader::path() const noexcept { return state_->path; }

std::vector<finding> checkpoint_reader::findings() const {
  std::vector<finding> all = state_->files.warnings();
  auto const found = state_->resolved.found.kept();
  all.insert(all.end(), found.begin(), found.end());
  return all;
}

}  // namespace moe64
