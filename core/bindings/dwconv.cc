// Depthwise convolution: sizes as an object, weights as another, and a run.
#include "drivers/dwconv.h"

#include <nanobind/nanobind.h>

#include <memory>

#include "base/threads.h"
#include "bindings/buffer.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lowbit {
namespace {

Code byte_code(bool is_signed) { return is_signed ? Code::s8 : Code::u8; }

DwconvShape shape_of(int64_t batch, int64_t height, int64_t width, int64_t channels, int64_t kh, int64_t kw,
                     int64_t stride_h, int64_t stride_w, int64_t top, int64_t left, int64_t bottom, int64_t right,
                     int64_t dilation_h, int64_t dilation_w) {
  const DwconvShape s{batch,    height, width, channels, kh,    kw,         stride_h,
                      stride_w, top,    left,  bottom,   right, dilation_h, dilation_w};
  if (batch < 0 || height < 0 || width < 0 || channels < 1) throw nb::value_error("sizes: must not be negative");
  if (kh < 1 || kw < 1 || kh > kDwconvMaxTaps / kw) throw nb::value_error("kernel: no taps, or too many");
  if (stride_h < 1 || stride_w < 1 || dilation_h < 1 || dilation_w < 1)
    throw nb::value_error("stride, dilation: must be positive");
  if (top < 0 || left < 0 || bottom < 0 || right < 0) throw nb::value_error("padding: must not be negative");
  if (height + top + bottom <= dilation_h * (kh - 1) || width + left + right <= dilation_w * (kw - 1))
    throw nb::value_error("kernel: larger than the padded image");
  return s;
}

DwconvWeights weights_of(const DwconvShape& shape, bool x_signed, nb::handle w_array, bool w_signed,
                         nb::handle zero_array) {
  const Buffer w(w_array, "w");
  w.require(shape.channels * shape.kh * shape.kw, "w");
  Buffer zero;
  if (!zero_array.is_none()) {
    zero = Buffer(zero_array, "w_zero_point");
    zero.require(shape.channels * 4, "w_zero_point");
  }
  return dwconv_prepack(active_isa(), byte_code(x_signed), shape, byte_code(w_signed), w.as(), zero.as<int32_t>());
}

void run(const DwconvWeights& weights, const DwconvShape& shape, nb::handle x_array, int32_t x_zero,
         nb::handle bias_array, nb::handle out_array, nb::handle multiplier_array, int32_t zero, int32_t qmin,
         int32_t qmax, bool is_signed) {
  if (shape.channels != weights.channels || shape.kh != weights.kh || shape.kw != weights.kw ||
      shape.stride_w != weights.stride_w || shape.dilation_w != weights.dilation_w)
    throw nb::value_error("shape: not the one the weights were prepared for");
  const bool codes = !multiplier_array.is_none();
  const Buffer x(x_array, "x"), out(out_array, "out", true);
  x.require(shape.batch * shape.height * shape.width * shape.channels, "x");
  out.require(shape.outputs() * (codes ? 1 : 4), "out");
  Buffer bias, multiplier;
  if (!bias_array.is_none()) {
    bias = Buffer(bias_array, "bias");
    bias.require(shape.channels * 4, "bias");
  }
  if (codes) {
    multiplier = Buffer(multiplier_array, "multiplier");
    multiplier.require(shape.channels * 4, "multiplier");
  }
  const int64_t bytes = dwconv_workspace(shape, weights, num_threads());
  const std::unique_ptr<char[]> workspace(new char[bytes]);
  const DwconvInput input{x.as(), x_zero, bias.as<int32_t>()};
  const nb::gil_scoped_release release;
  if (codes) {
    const DwconvRequantize requantize{multiplier.as<float>(), zero, qmin, qmax, is_signed};
    dwconv_codes(shape, weights, input, requantize, out.as(), workspace.get(), bytes);
  } else {
    dwconv_sums(shape, weights, input, out.as<int32_t>(), workspace.get(), bytes);
  }
}

}  // namespace

void bind_dwconv(nb::module_& m) {
  nb::class_<DwconvShape>(m, "DwconvShape", "Sizes of a depthwise convolution, NHWC.")
      .def(
          "__init__",
          [](DwconvShape* self, int64_t batch, int64_t height, int64_t width, int64_t channels, int64_t kh, int64_t kw,
             int64_t stride_h, int64_t stride_w, int64_t top, int64_t left, int64_t bottom, int64_t right,
             int64_t dilation_h, int64_t dilation_w) {
            new (self) DwconvShape(shape_of(batch, height, width, channels, kh, kw, stride_h, stride_w, top, left,
                                            bottom, right, dilation_h, dilation_w));
          },
          "batch"_a, "height"_a, "width"_a, "channels"_a, "kh"_a, "kw"_a, "stride_h"_a, "stride_w"_a, "top"_a, "left"_a,
          "bottom"_a, "right"_a, "dilation_h"_a, "dilation_w"_a)
      .def_prop_ro("out_height", &DwconvShape::out_height)
      .def_prop_ro("out_width", &DwconvShape::out_width);
  nb::class_<DwconvWeights>(m, "DwconvWeights", "Weights [channels, kh, kw] prepared for one kernel, stride and ISA.")
      .def(
          "__init__",
          [](DwconvWeights* self, const DwconvShape& shape, bool x_signed, nb::handle w, bool w_signed,
             nb::handle w_zero_point) {
            new (self) DwconvWeights(weights_of(shape, x_signed, w, w_signed, w_zero_point));
          },
          "shape"_a, "x_signed"_a, "w"_a, "w_signed"_a, "w_zero_point"_a.none())
      .def_prop_ro("nbytes", [](const DwconvWeights& w) { return w.packed.size() * sizeof(CacheLine) + w.sum.size() * 4; })
      .def_prop_ro("x_signed", [](const DwconvWeights& w) { return w.row->code == Code::s8; })
      .def("run", &run, "shape"_a, "x"_a, "x_zero_point"_a, "bias"_a.none(), "out"_a,
           "multiplier"_a.none() = nb::none(), "zero_point"_a = 0, "qmin"_a = 0, "qmax"_a = 255, "is_signed"_a = false,
           "int32 sums into out, or with multipliers their codes.");
  m.def("dwconv_workspace", &dwconv_workspace, "shape"_a, "weights"_a, "threads"_a, "Bytes a run works in.");
}

}  // namespace lowbit
