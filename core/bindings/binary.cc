// Matrices and images of bits that stand for +1 and -1.
#include "drivers/gemm/binary.h"

#include <limits>

#include "bindings/bindings.h"

namespace lowbit {
namespace {

using Bits = Array<const uint8_t>;
using Floats = std::optional<Array<const float>>;

int64_t bytes_of(int64_t bits) { return (bits + 7) / 8; }
int64_t checked_bits(int64_t k, const char* name) {
  if (k < 0 || k > std::numeric_limits<int32_t>::max()) refuse(name, "expected 0 to 2^31 - 1");
  return k;
}

struct BinaryMatrix {
  int64_t k, n;
  PackedBits bits;

  BinaryMatrix(const Bits& rows, int64_t depth)
      : k(checked_bits(depth, "k")),
        n(rows_of(rows, bytes_of(k), 1, "bits")),
        bits(rows.data(), n, bytes_of(k), last_mask(k)) {}
};

// Scales and bias of the outputs; without scales, results are int32 sums.
struct OutputScales {
  Floats scale, bias;
  bool each = false;  // one scale per output

  OutputScales(Floats scales, Floats added, int64_t outputs) : scale(std::move(scales)), bias(std::move(added)) {
    if (scale) each = is_many(*scale, 4, outputs, "scale");
    require(bias, 4 * outputs, "bias");
    if (bias && !scale) throw nb::value_error("bias: expected a scale too");
  }
  BinaryScales with(const Floats& a_scale, int64_t rows) const {
    if (a_scale.has_value() != scale.has_value()) throw nb::value_error("scale: expected on both sides, or on none");
    if (!scale) return {};
    return {a_scale->data(), is_many(*a_scale, 4, rows, "a_scale"), scale->data(), each, data_of(bias)};
  }
};

class BinaryGemmPlan {
 public:
  BinaryGemmPlan(std::shared_ptr<BinaryMatrix> b, Floats scale, Floats bias)
      : b_(std::move(b)), scales_(std::move(scale), std::move(bias), b_->n) {}

  void run(const Bits& a, const Array<void>& out, const Floats& a_scale) const {
    const int64_t m = rows_of(a, bytes_of(b_->k), 1, "a");
    out.require(4 * product_of({m, b_->n}, "out"), "out");
    const BinaryScales scales = scales_.with(a_scale, m);
    without_gil_for_product(m, b_->n, b_->k, [&] { binary_matmul(a.data(), m, b_->bits, b_->k, scales, out.data()); });
  }
  static int64_t workspace_for(int64_t m, int64_t n, int64_t k) {
    check_product(m, n, k);
    return binary_matmul_workspace(m, n, k);
  }

 private:
  std::shared_ptr<BinaryMatrix> b_;
  OutputScales scales_;
};

std::unique_ptr<PackedBitsConv> make_conv(const Bits& w, int64_t channels) {
  const Py_buffer& v = w.view();
  if (v.ndim != 5 || v.shape[0] < 1 || v.shape[2] < 1 || v.shape[3] < 1)
    throw nb::value_error("w: expected [groups, outputs, kernel height, kernel width, bytes], at least one tap");
  product_of({channels}, "channels");
  const BinaryConvShape shape{v.shape[0], channels, v.shape[1], {v.shape[2], v.shape[3]}};
  if (v.shape[4] != shape.bytes()) throw nb::value_error("w: its last axis is not that of the channels");
  product_of({shape.kernel[0] + 1, shape.kernel[1] + 1, shape.groups, shape.outputs, 8 * shape.bytes()}, "w");
  checked_bits(shape.taps() * 8 * shape.bytes(), "w: bits of an output");
  return std::make_unique<PackedBitsConv>(w.data(), shape);
}

class BinaryConvPlan {
 public:
  BinaryConvPlan(std::shared_ptr<PackedBitsConv> w, const Window& window, bool channels_first, Floats scale,
                 Floats bias)
      : w_(std::move(w)),
        window_(window),
        channels_first_(channels_first),
        outputs_(w_->shape.groups * w_->shape.outputs),
        pixels_(window.pixels()),
        scales_(std::move(scale), std::move(bias), outputs_) {
    const BinaryConvShape& s = w_->shape;
    if (window.kernel_h != s.kernel[0] || window.kernel_w != s.kernel[1] || window.groups != s.groups ||
        window.channels != s.groups * s.channels)
      throw nb::value_error("window: not that of the weights");
    product_of({pixels_, outputs_}, "out");
    inputs_ = product_of({window.batch, window.height, window.width, s.groups, s.bytes()}, "x");
  }

  void run(const Bits& x, const Array<void>& out, const Floats& x_scale) const {
    x.require(inputs_, "x"), out.require(4 * pixels_ * outputs_, "out");
    const BinaryScales scales = scales_.with(x_scale, window_.batch);
    without_gil_for_product(pixels_, outputs_, w_->shape.taps() * w_->shape.channels,
                            [&] { binary_conv2d(window_, channels_first_, x.data(), *w_, scales, out.data()); });
  }

 private:
  std::shared_ptr<PackedBitsConv> w_;
  Window window_;
  bool channels_first_;
  int64_t outputs_, pixels_, inputs_ = 0;
  OutputScales scales_;
};

void align_rows(const Bits& stream, int64_t rows, int64_t k, const Array<uint8_t>& out) {
  checked_bits(k, "k");
  stream.require(bytes_of(product_of({rows, k}, "rows")), "stream"), out.require(rows * bytes_of(k), "out");
  without_gil_for_product(rows, k, 8, [&] { binary_align_rows(stream.data(), rows, k, out.data()); });
}

void channels_last(const Bits& stream, int64_t channels, const Array<uint8_t>& out) {
  const Py_buffer& v = out.view();
  if (v.ndim != 4) throw nb::value_error("out: expected [images, pixels, groups, bytes]");
  const int64_t images = v.shape[0], pixels = v.shape[1], groups = v.shape[2];
  product_of({images, pixels, groups, v.shape[3]}, "out");
  if (channels < 0 || groups < 1 || channels % groups != 0 || v.shape[3] != bytes_of(channels / groups))
    throw nb::value_error("out: its groups do not divide the channels");
  stream.require(bytes_of(product_of({images, channels, pixels}, "sizes")), "stream");
  without_gil_for_product(images, channels, 8 * pixels,
                          [&] { binary_channels_last(stream.data(), images, channels, pixels, groups, out.data()); });
}

}  // namespace

void bind_binary(nb::module_& m) {
  nb::class_<BinaryMatrix>(m, "BinaryMatrix", "Rows of bits, packed once as the right side of products.")
      .def(nb::init<const Bits&, int64_t>(), "bits"_a, "k"_a,
           "bits: [n, bytes], the first bit in bit 0, k bits per row.")
      .def_ro("n", &BinaryMatrix::n)
      .def_ro("k", &BinaryMatrix::k)
      .def_prop_ro("nbytes", [](const BinaryMatrix& b) { return b.bits.nbytes(); });
  nb::class_<BinaryGemmPlan>(m, "BinaryGemmPlan", "Rows of bits times packed rows: k - 2 * popcount(a xor b).")
      .def(nb::init<std::shared_ptr<BinaryMatrix>, Floats, Floats>(), "b"_a, "scale"_a.none() = nb::none(),
           "bias"_a.none() = nb::none(), "Without a scale results are int32 sums; with one float32.")
      .def("run", &BinaryGemmPlan::run, "a"_a, "out"_a, "a_scale"_a.none() = nb::none(),
           "a: [m, bytes]; a_scale: one, or one per row.")
      .def_static("workspace_for", &BinaryGemmPlan::workspace_for, "m"_a, "n"_a, "k"_a,
                  "The most bytes that a product of this size works in, packed weights included.");
  nb::class_<PackedBitsConv>(m, "BinaryConv", "Kernels of bits, packed once for many convolutions.")
      .def(nb::new_(&make_conv), "w"_a, "channels"_a,
           "w: [groups, outputs, height, width, bytes]; channels, outputs: per group.")
      .def_prop_ro("groups", [](const PackedBitsConv& w) { return w.shape.groups; })
      .def_prop_ro("channels", [](const PackedBitsConv& w) { return w.shape.groups * w.shape.channels; })
      .def_prop_ro("outputs", [](const PackedBitsConv& w) { return w.shape.groups * w.shape.outputs; })
      .def_prop_ro("kernel", [](const PackedBitsConv& w) { return w.shape.kernel; })
      .def_prop_ro("nbytes", &PackedBitsConv::nbytes);
  nb::class_<BinaryConvPlan>(m, "BinaryConvPlan", "A convolution of bits; padding adds nothing to a sum.")
      .def(nb::init<std::shared_ptr<PackedBitsConv>, const Window&, bool, Floats, Floats>(), "w"_a, "window"_a,
           "channels_first"_a, "scale"_a.none() = nb::none(), "bias"_a.none() = nb::none(),
           "channels_first: of the result. Without a scale results are int32 sums; with one float32.")
      .def("run", &BinaryConvPlan::run, "x"_a, "out"_a, "x_scale"_a.none() = nb::none(),
           "x: [image, height, width, group, bytes]; x_scale: one, or one per image.");
  m.def("binary_align_rows", &align_rows, "stream"_a, "rows"_a, "k"_a, "out"_a,
        "Rows of k bits without gaps as rows of whole bytes.");
  m.def("binary_channels_last", &channels_last, "stream"_a, "channels"_a, "out"_a,
        "A stream of bits, channels first, as whole bytes of each pixel's channels, group after group.");
}

}  // namespace lowbit
