// SPDX-License-Identifier: MIT
// Our half of tests/bench/loader.py and loader_memory.py: epochs over shards, and what they took.
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "data/loader/loader.h"
#include "data/pictures/preprocess.h"
#include "io/formats/npy.h"
#include "io/formats/webdataset.h"
#include "io/pictures/image.h"

using namespace dalle2;

namespace {

struct Arguments {
  std::string shards, embeds, kind = "crop", dump;
  int64_t workers = 0;
  int64_t candidates = 0;  // shards that the config names, whether they exist or not
  double soak = 0;         // seconds of epoch after epoch
  bool fast = false, share = false;
};

/// Processor time of all threads so far, seconds.
double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// 64 pixels: "crop", the augmentation of the reference's example, or "resize", which draws
/// nothing.
std::vector<TransformConfig> transforms(const std::string& kind) {
  TransformConfig crop;
  crop.size = {64};
  if (kind == "crop") {
    crop.kind = TransformKind::RandomResizedCrop;
    crop.scale = {0.75, 1.0};
    crop.ratio = {1.0, 1.0};
  } else {
    crop.kind = TransformKind::Resize;
  }
  return {crop, TransformConfig{}};
}

std::vector<std::string> sorted_tars(const std::string& folder) {
  std::vector<std::string> tars;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".tar") tars.push_back(entry.path().string());
  }
  std::sort(tars.begin(), tars.end());
  return tars;
}

/// The shards as a run finds them: the training part of `candidates` numbers.
ShardUrls urls_of_candidates(const Arguments& arguments) {
  ShardDataConfig config;
  config.webdataset_base_url = arguments.shards + "/{}.tar";
  config.shard_width = 5;
  config.end_shard = arguments.candidates - 1;
  config.splits = {.train = 1.0, .val = 0.0, .test = 0.0};
  const auto list = std::make_shared<const ShardList>(config);
  std::vector<uint32_t> all(static_cast<size_t>(list->size()));
  std::iota(all.begin(), all.end(), uint32_t{0});
  return shard_urls(list, all, "train");
}

/// Resident memory now, MiB.
double resident_mib() {
  std::ifstream statm("/proc/self/statm");
  int64_t pages = 0, resident = 0;
  statm >> pages >> resident;
  return static_cast<double>(resident * sysconf(_SC_PAGESIZE)) / (1 << 20);
}

/// One epoch over these shards. @return the images
int64_t run_loader(const Arguments& arguments, const ShardUrls& tars) {
  ShardDataConfig config;
  config.img_embeddings_url = arguments.embeds;
  config.num_workers = arguments.workers;
  config.preprocessing = transforms(arguments.kind);
  config.fast_jpeg = arguments.fast;
  LoaderOptions options;
  options.urls = tars;
  options.need_image_embeds = true;
  options.need_captions = true;
  ShardLoader loader(config, options);
  loader.start_epoch(0);
  int64_t images = 0;
  while (const std::optional<Batch> batch = loader.next()) {
    if (images == 0 && !arguments.dump.empty()) {
      const at::Tensor pixels = batch->images.contiguous();
      write_npy_float32(arguments.dump, pixels.sizes().vec(), pixels.data_ptr<float>());
    }
    images += batch->size();
  }
  return images;
}

/// Nothing but the pictures' decoding and resampling, from memory. @return seconds
double decode_all(const Arguments& arguments, const std::vector<std::string>& tars) {
  std::vector<std::string> files;
  for (const std::string& tar : tars) {
    SampleReader reader(tar);
    while (auto sample = reader.next()) {
      if (const std::string* picture = sample->find({"jpg"})) files.push_back(*picture);
    }
  }
  const Preprocess preprocess(transforms(arguments.kind), {.fast_jpeg = arguments.fast});
  const double start = cpu_seconds();
  for (size_t i = 0; i < files.size(); ++i) {
    SampleRandom random(0, 0, "shard", std::to_string(i), 0);
    preprocess.apply(files[i], "picture", std::ref(random));
  }
  return cpu_seconds() - start;
}

/// The loader and the decoding alone over the same few shards in turns, so that what else the
/// machine does slows both.
/// @return seconds of all and of decoding
std::pair<double, double> compare(const Arguments& arguments) {
  const std::vector<std::string> tars = sorted_tars(arguments.shards);
  constexpr size_t kTurn = 5;
  double all = 0, decoding = 0;
  for (size_t first = 0; first < tars.size(); first += kTurn) {
    const auto begin = tars.begin() + static_cast<std::ptrdiff_t>(first);
    const std::vector<std::string> turn(
        begin, begin + static_cast<std::ptrdiff_t>(std::min(kTurn, tars.size() - first)));
    if (first == 0) run_loader(arguments, turn);  // what happens once in a run
    const double start = cpu_seconds();
    run_loader(arguments, turn);
    all += cpu_seconds() - start;
    decoding += decode_all(arguments, turn);
  }
  return {all, decoding};
}

/// Epoch after epoch, as in training: mixed. Prints the memory once a second.
void soak(const Arguments& arguments) {
  ShardDataConfig config;
  config.img_embeddings_url = arguments.embeds;
  config.num_workers = arguments.workers;
  config.preprocessing = transforms(arguments.kind);
  LoaderOptions options;
  options.urls = arguments.candidates > 0 ? urls_of_candidates(arguments)
                                          : ShardUrls(sorted_tars(arguments.shards));
  options.need_image_embeds = true;
  options.shuffle = true;
  options.shuffle_buffer = 1000;
  ShardLoader loader(config, options);
  const double start = wall_seconds();
  double next_print = 0;
  int64_t images = 0;
  for (int64_t epoch = 0; wall_seconds() - start < arguments.soak; ++epoch) {
    loader.start_epoch(epoch);
    while (const std::optional<Batch> batch = loader.next()) {
      images += batch->size();
      const double now = wall_seconds() - start;
      if (now < next_print) continue;
      next_print = now + 1;
      std::printf(
          "{\"seconds\": %.1f, \"epoch\": %lld, \"images\": %lld, \"resident_mib\": %.1f}\n",
          now,
          static_cast<long long>(epoch),
          static_cast<long long>(images),
          resident_mib());
      std::fflush(stdout);
      if (now >= arguments.soak) return;
    }
  }
}

Arguments parse(int count, char** values) {
  Arguments arguments;
  for (int i = 1; i < count; ++i) {
    const std::string name = values[i];
    const auto value = [&] { return std::string(i + 1 < count ? values[++i] : ""); };
    if (name == "--shards") arguments.shards = value();
    if (name == "--embeds") arguments.embeds = value();
    if (name == "--kind") arguments.kind = value();
    if (name == "--dump") arguments.dump = value();
    if (name == "--workers") arguments.workers = std::stoll(value());
    if (name == "--candidates") arguments.candidates = std::stoll(value());
    if (name == "--soak") arguments.soak = std::stod(value());
    if (name == "--fast") arguments.fast = true;
    if (name == "--share") arguments.share = true;
  }
  return arguments;
}

}  // namespace

int main(int count, char** values) {
  try {
    const Arguments arguments = parse(count, values);
    if (arguments.soak > 0) {
      soak(arguments);
      return 0;
    }
    if (arguments.share) {
      const auto [all, decoding] = compare(arguments);
      std::printf("{\"all\": %.6f, \"decoding\": %.6f}\n", all, decoding);
      return 0;
    }
    const std::vector<std::string> tars = sorted_tars(arguments.shards);
    // What happens once in a process; the reference's is warm from the rounds before.
    Arguments warm_up = arguments;
    warm_up.dump.clear();
    run_loader(warm_up, std::vector<std::string>{tars.front()});
    const double cpu = cpu_seconds(), wall = wall_seconds();
    const int64_t images = run_loader(arguments, tars);
    std::printf("{\"images\": %lld, \"cpu\": %.6f, \"wall\": %.6f}\n",
                static_cast<long long>(images),
                cpu_seconds() - cpu,
                wall_seconds() - wall);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_loader: %s\n", error.what());
    return 1;
  }
}
