// Depthwise convolution: sizes as an object, weights as another, and a run.
#include "drivers/conv/dwconv.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/unique_ptr.h>

#include <memory>

#include "bindings/arrays.h"
#include "bindings/bindings.h"
#include "bindings/epilogue.h"
#include "bindings/gil.h"
#include "bindings/sizes.h"

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
  product_of({batch, height, width, channels}, "sizes");
  if (channels < 1) throw nb::value_error("channels: must be positive");
  if (kh < 1 || kw < 1 || kh > kDwconvMaxTaps / kw) throw nb::value_error("kernel: no taps, or too many");
  if (stride_h < 1 || stride_w < 1 || dilation_h < 1 || dilation_w < 1)
    throw nb::value_error("stride, dilation: must be positive");
  for (const int64_t n : {top, left, bottom, right}) product_of({n}, "padding");
  product_of({dilation_h, kh}, "dilation"), product_of({dilation_w, kw}, "dilation");
  if (height + top + bottom <= dilation_h * (kh - 1) || width + left + right <= dilation_w * (kw - 1))
    throw nb::value_error("kernel: larger than the padded image");
  product_of({batch, s.out_height(), s.out_width(), channels}, "sizes");
  return s;
}

std::unique_ptr<DwconvWeights> weights_of(const DwconvShape& shape, bool x_signed, nb::handle w_array, bool w_signed,
                                          nb::handle zero_array) {
  const Buffer w(w_array, "w"), zero = optional(zero_array, "w_zero_point");
  w.require(shape.channels * shape.kh * shape.kw, "w");
  if (zero) zero.require(shape.channels * 4, "w_zero_point");
  return std::make_unique<DwconvWeights>(active_isa(), byte_code(x_signed), shape, byte_code(w_signed), w.as(),
                                         zero.as<int32_t>());
}

void run(const DwconvWeights& weights, const DwconvShape& shape, nb::handle x_array, int32_t x_zero,
         const EpilogueSpec& spec, nb::handle out_array) {
  if (!weights.serves(shape)) throw nb::value_error("shape: not the one the weights were prepared for");
  const Buffer x(x_array, "x"), out(out_array, "out", true);
  x.require(shape.batch * shape.height * shape.width * shape.channels, "x");
  out.require(shape.outputs() * result_bytes(spec.result), "out");
  Epilogue epilogue = spec.epilogue(1, shape.channels);
  epilogue.scale_per_row = false;  // one for all pixels
  const GilReleased released;
  dwconv(shape, weights, x.as(), x_zero, epilogue, out.as());
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
      .def(nb::new_(&weights_of), "shape"_a, "x_signed"_a, "w"_a, "w_signed"_a, "w_zero_point"_a.none())
      .def_prop_ro("nbytes", &DwconvWeights::nbytes)
      .def("run", &run, "shape"_a, "x"_a, "x_zero_point"_a, "epilogue"_a, "out"_a,
           "x [batch, height, width, channels] by these weights. out: [batch, out_height, out_width, channels].");
  m.def("dwconv_thread_bytes", &dwconv_thread_bytes, "shape"_a, "weights"_a, "Bytes a thread of run works in.");
  m.def("dwconv_call_bytes", &dwconv_call_bytes, "shape"_a, "weights"_a, "Bytes run allocates beside them.");
}

}  // namespace lowbit
