// SPDX-License-Identifier: MIT
// Loops of linear attention: included by loops_body.h.
namespace dalle2::loops {
namespace {

/// y = softmax(x) of each row.
template <class T>
void softmax_rows(const HeadRows& rows, const T* x, T* y) {
  float values[kMostHeadWidth];
  const int64_t width = rows.width;
  for (int64_t row = 0; row < rows.rows; ++row) {
    const T* const from = x + row * rows.step;
    T* const to = y + row * width;
    float most = load(from[0]), sum = 0;
#pragma omp simd reduction(max : most)
    for (int64_t i = 0; i < width; ++i) most = load(from[i]) > most ? load(from[i]) : most;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < width; ++i) {
      values[i] = exp_of(load(from[i]) - most);
      sum += values[i];
    }
    const float factor = 1.0f / sum;
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) store(to[i], values[i] * factor);
  }
}

/// y = softmax(x) of each column.
template <class T>
void softmax_columns(const HeadRows& rows, const T* x, T* y) {
  float most[kMostHeadWidth], sum[kMostHeadWidth];
  const int64_t width = rows.width;
  for (int64_t i = 0; i < width; ++i) {
    most[i] = load(x[i]);
    sum[i] = 0;
  }
  for (int64_t row = 1; row < rows.rows; ++row) {
    const T* const from = x + row * rows.step;
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) most[i] = load(from[i]) > most[i] ? load(from[i]) : most[i];
  }
  for (int64_t row = 0; row < rows.rows; ++row) {
    const T* const from = x + row * rows.step;
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) sum[i] += exp_of(load(from[i]) - most[i]);
  }
  for (int64_t i = 0; i < width; ++i) sum[i] = 1.0f / sum[i];
  for (int64_t row = 0; row < rows.rows; ++row) {
    const T* const from = x + row * rows.step;
    T* const to = y + row * width;
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) store(to[i], exp_of(load(from[i]) - most[i]) * sum[i]);
  }
}

/// y = x / max(|x|, least) of each row.
template <class T>
void unit_rows(const HeadRows& rows, float least, const T* x, T* y) {
  const int64_t width = rows.width;
  for (int64_t row = 0; row < rows.rows; ++row) {
    const T* const from = x + row * rows.step;
    T* const to = y + row * width;
    float squares = 0;
#pragma omp simd reduction(+ : squares)
    for (int64_t i = 0; i < width; ++i) squares += load(from[i]) * load(from[i]);
    const float norm = std::sqrt(squares);
    const float factor = 1.0f / (norm < least ? least : norm);
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) store(to[i], load(from[i]) * factor);
  }
}

}  // namespace
}  // namespace dalle2::loops
