// SPDX-License-Identifier: MIT
#include "fuzz/parsers.h"

#include "base/error.h"
#include "base/public_url.h"
#include "base/python_format.h"
#include "base/untrusted_json.h"
#include "base/untrusted_text.h"
#include "checkpoint/pickle/pickle_machine.h"
#include "config/clip/clip_run_config.h"
#include "config/decoder/decoder_run_config.h"
#include "config/prior/prior_run_config.h"
#include "config/vae/vae_run_config.h"
#include "data/shards/url_patterns.h"
#include "fuzz/promise.h"
#include "io/files/listing.h"
#include "io/formats/npy.h"
#include "io/formats/webdataset.h"
#include "io/pictures/image.h"
#include "io/text/caption_text.h"
#include "io/text/clip_tokenizer.h"
#include "io/text/unicode.h"
#include "net/s3/s3.h"
#include "tracker/log/log_file.h"

namespace dalle2::test {
namespace {

void no_longer_than(const std::string& shown, const std::string& text) {
  promise(shown.size() <= 2 * text.size() + 16, "an url grows by being shown");
}

}  // namespace

void read_json_text(const std::string& bytes) {
  const ParsedJson parsed = parse_untrusted_json(bytes);
  if (!parsed.is_right()) throw DataError("{}", parsed.fault);
  promise(is_utf8(bytes), "text that is not UTF-8 was taken");
  // Throws if a text inside is not UTF-8.
  const std::string again = parsed.value.dump();
  promise(parse_untrusted_json(again).value.dump() == again, "JSON that does not come back");
}

template <class Parse>
void read_config_of(const std::string& bytes, const Parse& parse) {
  const ReadOptions options = {.overrides = {}, .check_available = false};
  const std::string full = parse(bytes, "a.json", options).full_json;
  promise(full == parse(full, "b.json", options).full_json, "a config that does not come back");
}

void read_config_text(const std::string& bytes) {
  // A decoder may name VAEs and a CLIP of its own.
  const auto has = [&](const char* key) { return bytes.find(key) != std::string::npos; };
  if (has("\"vae\"") && !has("\"decoder\"")) return read_config_of(bytes, parse_vae_config);
  if (has("\"clip\"") && !has("\"decoder\"")) return read_config_of(bytes, parse_clip_config);
  if (bytes.size() % 2 == 1) return read_config_of(bytes, parse_prior_config);
  read_config_of(bytes, parse_decoder_config);
}

void read_template(const std::string& bytes) {
  const FormatFields fields = {{"epoch", int64_t{3}},
                               {"loss", 0.25},
                               {"task", std::string("train")},
                               {"losses", std::vector<double>{0.5, 0.25}}};
  const auto fault = python_format_fault(bytes, fields);
  if (fault) throw ConfigError("{}", *fault);
  python_format_literals(bytes);
  // A field of at least 3 letters becomes at most the 1309 of {x:.999f}.
  promise(python_format(bytes, fields).size() <= 1400 * bytes.size(), "a template without a bound");
}

void read_url_list(const std::string& bytes) {
  no_longer_than(public_url(bytes), bytes);
  promise(!expand_urls(bytes, "/data/webdataset_base_url", /*most=*/1000).empty(), "no url");
}

void read_index_page(const std::string& bytes) {
  for (const ListedFile& file : links_of_page(bytes, "http://h/a/index.html?k")) {
    promise(file.url.starts_with("http://h/a/") && file.url.ends_with("?k"), "a link elsewhere");
  }
}

void read_s3_page(const std::string& bytes) {
  for (const std::string& key : parse_s3_page(bytes).keys) promise(!key.empty(), "an empty key");
  parse_s3_url("s3://" + bytes);
}

void read_aws_files(const std::string& bytes) {
  const MemoryFile file(bytes);
  for (const char* name : {"AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"}) {
    setenv(name, file.path().c_str(), 1);
  }
  find_s3_access();
}

void read_log_of_run(const std::string& bytes) {
  const MemoryFile file(bytes);
  for (const LogSeries& series : read_run_log(file.path()).series) {
    promise(series.steps.size() == series.values.size() &&
                std::is_sorted(series.steps.begin(), series.steps.end()),
            "steps that do not grow");
  }
}

void read_stored_config(const std::string& bytes) {
  const std::string shown = public_config(bytes);
  if (parse_untrusted_json(bytes, {.comments = true}).is_right()) {
    promise(public_config(shown) == shown, "a config that changes when it is stored again");
  }
}

void read_npy_array(const std::string& bytes) {
  const NpyArray array = parse_npy(bytes, "x");
  const auto values = static_cast<size_t>(array.numel());
  promise(array.bytes.size() == values * npy_item_size(array.type), "an array of another size");
  array.to_float32();
}

void read_tar_samples(const std::string& bytes) {
  size_t at = 0;
  const ByteSource source = [&](char* buffer, size_t capacity) {
    const size_t size = std::min(capacity, bytes.size() - at);
    std::copy_n(bytes.data() + at, size, buffer);
    at += size;
    return size;
  };
  SampleReader reader(std::make_unique<TarReader>(source, "x.tar"));
  while (reader.next()) {
  }
}

void read_caption(const std::string& bytes) {
  static const ClipTokenizer tokenizer("t h\nth e</w>\na t</w>\n", "fuzz");
  const std::u32string clean = clean_caption(bytes);
  promise(clean.find(U"  ") == std::u32string::npos, "two spaces in a cleaned caption");
  promise(is_utf8(utf8(clean)), "a cleaned caption that is not UTF-8");
  for (const int64_t token : tokenizer.encode(bytes))
    promise(token >= 0 && token < tokenizer.vocab_size(), "a number that is no token");
}

void read_clip_merges(const std::string& bytes) {
  const std::string merges = ClipTokenizer(bytes, "fuzz").merges();
  promise(ClipTokenizer(merges, "again").merges() == merges, "merges that do not come back");
}

void read_picture(const std::string& bytes) {
  const Image image = decode_image(bytes, "x");
  const size_t pixels = static_cast<size_t>(image.width) * static_cast<size_t>(image.height);
  promise(image.pixels.size() == 3 * pixels, "a picture of another size");
  look_at_picture(bytes, "x");
}

void read_pickle_graph(const std::string& bytes) {
  const PickleGraph graph = run_pickle(bytes, "x");
  promise(graph.root < graph.nodes.size() && graph.end <= bytes.size(), "a graph without a root");
}

}  // namespace dalle2::test
