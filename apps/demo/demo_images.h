// SPDX-License-Identifier: MIT
// The demo set: pictures of one shape on a plain ground whose whole truth is five attributes, so
// that what a decoder draws can be checked against what it was asked for.
#pragma once

#include <opencv2/core.hpp>

#include <array>
#include <span>
#include <string>
#include <vector>

#include "io/pictures/image.h"

namespace dalle2 {

inline constexpr std::array<const char*, 5> kDemoShapes = {
    "circle", "square", "triangle", "cross", "ring"};
inline constexpr std::array<const char*, 6> kDemoColours = {
    "red", "green", "blue", "yellow", "purple", "cyan"};
inline constexpr std::array<const char*, 2> kDemoSizes = {"small", "large"};
inline constexpr std::array<const char*, 5> kDemoPlaces = {
    "left", "right", "top", "bottom", "centre"};
inline constexpr std::array<const char*, 3> kDemoGrounds = {"white", "grey", "black"};

/// Indices into the lists above; -1 where a picture could not be read.
struct DemoAttributes {
  int shape = 0, colour = 0, size = 0, place = 0, ground = 0;
  bool operator==(const DemoAttributes&) const = default;
};

/// One of the five attributes.
struct DemoAttribute {
  const char* name;
  int DemoAttributes::*member;
  std::span<const char* const> values;
};
/// In the order of the embedding's blocks.
inline constexpr std::array<DemoAttribute, 5> kDemoAttributes = {{
    {"shape", &DemoAttributes::shape, kDemoShapes},
    {"colour", &DemoAttributes::colour, kDemoColours},
    {"size", &DemoAttributes::size, kDemoSizes},
    {"place", &DemoAttributes::place, kDemoPlaces},
    {"ground", &DemoAttributes::ground, kDemoGrounds},
}};

/// All 900 combinations, in a fixed order.
std::vector<DemoAttributes> demo_combinations();
/// True for the 64 combinations that no training shard ever holds. Every value of every attribute
/// occurs in both parts.
bool is_held_out(const DemoAttributes& attributes);

/// "a large red triangle on the left, white ground"
std::string demo_caption(const DemoAttributes& attributes);

inline constexpr int kDemoEmbeddingSize = 32;
/// Of the values that are not zero: the embedding is then as long as one of CLIP's in the scale of a
/// prior, sqrt(512). A network that reads it begins with small weights; values of 1 it would hear
/// late, after the timestep.
inline constexpr float kDemoEmbeddingStrength = 10;
/// One value in each of five blocks (shape, colour, size, place, ground), then zeros: [32].
std::vector<float> demo_embedding(const DemoAttributes& attributes);

/// Small differences between drawings of the same attributes.
struct DemoVariation {
  double shift_x = 0, shift_y = 0;  ///< as a part of the side
  double scale = 1;
};
/// Draws without steps at the edges. @param side pixels, at least 8
Image draw_demo_image(const DemoAttributes& attributes,
                      int side,
                      const DemoVariation& variation = {});

/// What a picture shows, by plain image analysis.
struct DemoReading {
  DemoAttributes attributes;  ///< all but `ground` are -1 on an empty picture
  double shape_match = 0;     ///< overlap of the shape with the best drawing of one, 0 to 1
};
/// Reads a square picture of at least 8 pixels a side, a slightly blurred or noisy one too.
DemoReading analyse_demo_image(const Image& image);

using DemoColour = std::array<double, 3>;  // R, G, B, 0 to 255

inline constexpr std::array<DemoColour, kDemoColours.size()> kDemoColourValues = {{
    {215, 35, 35},
    {35, 155, 60},
    {40, 65, 220},
    {250, 210, 40},
    {165, 45, 205},
    {35, 195, 220},
}};
inline constexpr std::array<DemoColour, kDemoGrounds.size()> kDemoGroundValues = {{
    {255, 255, 255},
    {128, 128, 128},
    {0, 0, 0},
}};

/// Parts of the side.
struct DemoPoint {
  double x, y;
};
inline constexpr std::array<DemoPoint, kDemoPlaces.size()> kDemoPlaceCentres = {{
    {0.26, 0.5},
    {0.74, 0.5},
    {0.5, 0.26},
    {0.5, 0.74},
    {0.5, 0.5},
}};
inline constexpr std::array<double, kDemoSizes.size()> kDemoDiameters = {0.28, 0.44};

/// How much of each pixel the shape covers: [side, side] float, 0 to 1.
/// @param diameter of the shape's extent, @param centre of it; parts of the side
/// @param oversampling drawn that much larger and averaged down
cv::Mat1f draw_coverage(int shape, double diameter, DemoPoint centre, int side, int oversampling);

/// How far the centroid of a shape lies below its centre, in diameters.
double centroid_drop(int shape);

}  // namespace dalle2
