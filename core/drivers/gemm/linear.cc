#include "drivers/gemm/linear.h"

#include <algorithm>

#include "drivers/gemm/float_tiles.h"

namespace lowbit {
namespace {

Granularity rows_of(int64_t m, int64_t k) { return {GranularityKind::group, m, k, 1, std::max<int64_t>(1, k)}; }

// Quantizes as many rows as fit the staging size, then calls multiply(first row, rows, codes, scales, zero points).
template <class Multiply>
DynamicResult in_stages(const Activations& a, int64_t k, const Multiply& multiply) {
  const int64_t at_once = staged_rows(k, a.m);
  const Aligned<uint8_t> codes = aligned<uint8_t>(at_once * k);
  const Aligned<float> scale = aligned<float>(at_once);
  const Aligned<int32_t> zero = aligned<int32_t>(at_once);
  const Aligned<char> range = aligned<char>(dynamic_workspace(rows_of(at_once, k), a.in));
  DynamicResult result;
  for (int64_t first = 0; first < a.m; first += at_once) {
    const int64_t rows = std::min(at_once, a.m - first);
    const void* x = static_cast<const char*>(a.x) + first * k * element_bytes(a.in);
    if (a.how == Activation::fixed) {
      const Affine affine{a.code, &a.scale, &a.zero, a.qmin, a.qmax};
      quantize(Granularity{GranularityKind::tensor, 1, 1, rows * k, 1}, affine, x, a.in, codes.get());
      multiply(first, rows, codes.get(), &a.scale, &a.zero);
      continue;
    }
    const bool symmetric = a.how == Activation::s8_per_row;
    const DynamicArgs d{
        symmetric ? Code::s8 : Code::u8, symmetric ? -127 : 0, symmetric ? 127 : 255, symmetric ? 127 : 0, scale.get(),
        symmetric ? nullptr : zero.get()};
    if (k > 0) {
      result = quantize_from_data(rows_of(rows, k), d, x, a.in, codes.get(), range.get());
    } else {
      std::fill_n(scale.get(), rows, 1.0f);
    }
    if (result.nan != 0 || result.bad_scale != 0) return result;
    if (symmetric) std::fill_n(zero.get(), rows, 0);
    multiply(first, rows, codes.get(), scale.get(), zero.get());
  }
  return result;
}

}  // namespace

DynamicResult linear(const Activations& a, const PackedMatrix& b, const Epilogue& epilogue, void* out) {
  return in_stages(a, b.k,
                   [&](int64_t first, int64_t count, const uint8_t* codes, const float* scale, const int32_t* zero) {
                     CodeRows rows{};
                     rows.rows = count, rows.codes = codes, rows.stride = b.k, rows.zero = zero;
                     rows.is_signed = a.how == Activation::fixed ? a.code == Code::s8 : a.how == Activation::s8_per_row;
                     static const int32_t none = 0;
                     if (a.how == Activation::s8_per_row) rows.zero = &none;
                     rows.zero_per_row = a.how == Activation::u8_per_row;
                     Epilogue f = epilogue;
                     f.row_scale = scale, f.scale_per_row = a.how != Activation::fixed;
                     gemm(rows, b, f, static_cast<char*>(out) + first * b.n * result_bytes(f.result), b.n);
                   });
}

DynamicResult linear(const Activations& a, const PackedGroups& b, const FloatEpilogue& epilogue, void* out) {
  return in_stages(a, b.k, [&](int64_t first, int64_t count, const uint8_t* codes, const float* scale, const int32_t*) {
    const Aligned<float> repeated = aligned<float>(a.how == Activation::fixed ? count : 0);
    if (a.how == Activation::fixed) std::fill_n(repeated.get(), count, scale[0]);
    group_matmul(reinterpret_cast<const int8_t*>(codes), count, a.how == Activation::fixed ? repeated.get() : scale,
                 false, b, epilogue, static_cast<char*>(out) + first * b.n * result_bytes(epilogue.result));
  });
}

int64_t linear_workspace(int64_t m, int64_t k) {
  const int64_t at_once = staged_rows(k, m);
  return lines(at_once * k) + 3 * lines(at_once * 4) + lines(dynamic_workspace(rows_of(at_once, k), Element::f32));
}

}  // namespace lowbit
