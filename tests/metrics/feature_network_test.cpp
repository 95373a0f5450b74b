// SPDX-License-Identifier: MIT
#include "metrics/networks.h"

#include "metrics/feature_network_pictures.h"
#include "support/message_of.h"

namespace dalle2::test {
namespace {

using enum InceptionFeature;

// Weights of a resize in float32, of values up to 255: a few roundings.
constexpr double kResizeTolerance = 2e-6;
// Pillow has its kernel's places and weights in float64, LibTorch in float32.
constexpr double kCleanTolerance = 1e-4;

std::string archive(const std::string& name) {
  return fixture_folder("feature_networks") + "/" + name;
}

FeatureNetwork open(const std::string& name,
                    const std::vector<InceptionFeature>& layers,
                    NetworkResize resize = NetworkResize::tf1) {
  return FeatureNetwork(
      archive(name), "/evaluate/FID/feature_extractor_weights_path", layers, resize, at::kCPU);
}

/// What opening says, without the folder.
std::string fault_of(const std::string& name,
                     const std::vector<InceptionFeature>& layers,
                     NetworkResize resize = NetworkResize::tf1) {
  std::string text = message_of<ConfigError>([&] { open(name, layers, resize); });
  if (const size_t at = text.find(archive("")); at != std::string::npos)
    text.erase(at, archive("").size());
  return text;
}

TEST_CASE("pictures are resized as torch-fidelity, torchmetrics and Pillow do") {
  const Fixture fixture = load_fixture("feature_networks/expected");
  const size_t sizes = listed(fixture, "sizes", 5).size();
  int with_all = 0;
  for (const auto& [how, name] : {std::pair{NetworkResize::tf1, "tf1"},
                                  std::pair{NetworkResize::antialias, "antialias"},
                                  std::pair{NetworkResize::clean, "clean"}}) {
    const FeatureNetwork network = open("ours.pt", {k2048, k64, logits_unbiased}, how);
    for (size_t number = 0; number < sizes; ++number) {
      const std::string key = std::to_string(number) + "." + name + ".";
      INFO(key);
      const double tolerance = how == NetworkResize::clean ? kCleanTolerance : kResizeTolerance;
      const Features found = network(shown_pictures(fixture, number));
      CHECK(found.size() == 3);
      expect_close(found.at(k64), fixture.tensor(key + "64"), tolerance, "64");
      if (!fixture.has(key + "2048")) continue;
      ++with_all;
      expect_close(found.at(k2048), fixture.tensor(key + "2048"), tolerance, "2048");
      expect_close(
          found.at(logits_unbiased), fixture.tensor(key + "logits_unbiased"), tolerance, "logits");
    }
  }
  CHECK(with_all == 1);
}

TEST_CASE("more pictures than the network sees at once give the same features") {
  const Fixture fixture = load_fixture("feature_networks/expected");
  const at::Tensor two = shown_pictures(fixture, 1);
  const FeatureNetwork network = open("ours.pt", {k192});
  const at::Tensor many = network(two.repeat({21, 1, 1, 1})).at(k192);
  CHECK(many.size(0) == 42);
  // Sums of a larger product are taken in another order.
  CHECK(at::allclose(many, network(two).at(k192).repeat({21, 1}), 1e-5, 1e-6));
}

TEST_CASE("StyleGAN2-ADA's archive gives features and logits") {
  const Fixture fixture = load_fixture("feature_networks/expected");
  const FeatureNetwork network = open("stylegan.pt", {k2048, logits_unbiased});
  int with_all = 0;
  for (size_t number = 0; number < listed(fixture, "sizes", 5).size(); ++number) {
    const std::string key = std::to_string(number) + ".";
    const Features found = network(shown_pictures(fixture, number));
    CHECK(found.at(k2048).size(1) == 2048);
    const at::Tensor features = fixture.tensor(key + "stylegan.2048");  // all of them, or the first
    expect_close(
        found.at(k2048).slice(1, 0, features.size(1)), features, kResizeTolerance, "features");
    if (!fixture.has(key + "stylegan.classes")) continue;
    ++with_all;
    CHECK(features.size(1) == 2048);
    expect_close(found.at(logits_unbiased).softmax(1),
                 fixture.tensor(key + "stylegan.classes"),
                 1e-5,
                 "classes");
  }
  CHECK(with_all == 1);
}

TEST_CASE("what is wrong with an archive is told with what to do") {
  const std::string where = "/evaluate/FID/feature_extractor_weights_path: ";
  const std::string advice =
      "\n  scripts/export_inception.py makes one from the weights that torch-fidelity or "
      "pytorch-fid publish; StyleGAN2-ADA's inception-2015-12-05.pt is one.";
  const std::string script = " is TorchScript, but not the Inception network: ";
  const std::pair<std::string, std::string> faults[] = {
      {"absent.pt", "there is no file absent.pt"},
      {"empty.pt", "empty.pt is an empty file"},
      {"weights.pth",
       "weights.pth is a zip archive, but not TorchScript: perhaps only the weights"},
      {"cut.pt",
       "cut.pt: damaged archive: no directory at its end: it is cut off, or other bytes follow"},
      {"network.pkl",
       "network.pkl is a pickle of Python: perhaps a network of StyleGAN3 or EDM, or weights in the "
       "old format"},
      {"strange.pt",
       "strange.pt" + script + "its forward() has neither `deepest` nor `return_features`"},
      {"lpips.pt", "lpips.pt" + script + "it says that it is for \"lpips\""},
      {"narrow.pt", "layer 2048 of narrow.pt: expected features of width 2048, got 100"}};
  for (const auto& [name, fault] : faults)
    CHECK(fault_of(name, {k64, k2048}) == where + fault + advice);
  open("narrow.pt", {k64});
  CHECK(fault_of("stylegan.pt", {k768}) ==
        where +
            "stylegan.pt is StyleGAN2-ADA's network, which has the layers 2048 and "
            "logits_unbiased, not 768" +
            advice);
  CHECK(fault_of("stylegan.pt", {k2048}, NetworkResize::clean) ==
        where +
            "stylegan.pt resizes by itself, as TensorFlow 1 did: /evaluate/resize must be \"tf1\"");
}

TEST_CASE("the distance of pairs is the archive's, of pictures in [-1, 1]") {
  const PerceptualDistance distance(
      archive("lpips.pt"), "/evaluate/LPIPS", LpipsNet::alex, 8, at::kCPU);
  const at::Tensor one = at::full({40, 3, 8, 8}, 0.25F), other = at::full({40, 3, 8, 8}, 0.75F);
  CHECK(at::allclose(distance(one, other), at::ones({40})));
  // Beyond [0, 1] they are cut off.
  CHECK(at::allclose(distance(one - 1, other + 1), at::full({40}, 4.0F)));
}

TEST_CASE("what is wrong with an archive for LPIPS is told, too") {
  const auto fault = [](const std::string& name, LpipsNet net) {
    const std::string text = message_of<ConfigError>([&] {
      PerceptualDistance(archive(name), "/evaluate/LPIPS/weights_path", net, 32, at::kCPU);
    });
    return text.substr(0, text.find('\n'));
  };
  const std::string where = "/evaluate/LPIPS/weights_path: ";
  CHECK(fault("ours.pt", LpipsNet::alex) ==
        where + archive("ours.pt") + " is TorchScript, but not a network for LPIPS");
  CHECK(fault("lpips.pt", LpipsNet::vgg) ==
        where + archive("lpips.pt") + " has the backbone \"alex\", and `net_type` is \"vgg\"");
  CHECK(fault("lpips_scalar.pt", LpipsNet::alex) ==
        where + "the network in " + archive("lpips_scalar.pt") +
            " does not give one distance per pair of pictures of 32 pixels");
  CHECK(fault("absent.pt", LpipsNet::alex) == where + "there is no file " + archive("absent.pt"));
}

TEST_CASE("bytes are rounded as the reference rounds them") {
  const at::Tensor images = at::tensor({-1.0, 0.0, 0.00196, 0.00197, 0.5, 0.998, 0.9981, 1.0, 7.0});
  CHECK(at::equal(to_bytes(images), at::tensor({0, 0, 0, 1, 128, 254, 255, 255, 255}, at::kByte)));
}

}  // namespace
}  // namespace dalle2::test
