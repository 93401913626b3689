// Matrices and images of bits, lent as plain bytes.
#include "drivers/gemm/binary.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>

#include <array>
#include <limits>
#include <optional>

#include "bindings/arrays.h"
#include "bindings/bindings.h"
#include "bindings/gil.h"
#include "bindings/sizes.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lowbit {

namespace {

// Letting go of the GIL costs more than a small call does.
constexpr int64_t kReleaseAtProducts = 1 << 18;  // products of bits

struct WithoutGil {
  std::optional<GilReleased> released;
  explicit WithoutGil(double work) {
    if (work >= static_cast<double>(kReleaseAtProducts)) released.emplace();
  }
};

int64_t bytes_of(int64_t bits) { return (bits + 7) / 8; }
double size(int64_t a, int64_t b, int64_t c) {
  return static_cast<double>(a) * static_cast<double>(b) * static_cast<double>(c);
}
void require_bits(int64_t k, const char* name) {
  if (k < 0 || k > std::numeric_limits<int32_t>::max())
    throw nb::value_error((std::string(name) + ": expected 0 to 2^31 - 1").c_str());
}
void require_count(int64_t n, const char* name) {
  if (n < 0) throw nb::value_error((std::string(name) + ": must not be negative").c_str());
}
uint8_t last_mask(int64_t k) { return static_cast<uint8_t>(0xff >> (-k & 7)); }

struct BinaryMatrix {
  int64_t n, k;
  PackedBits bits;

  static BinaryMatrix make(nb::handle rows_array, int64_t n, int64_t k) {
    require_bits(k, "k"), require_count(n, "n");
    const Buffer rows(rows_array, "bits");
    rows.require(product_of({n, bytes_of(k)}, "bits"), "bits");
    const WithoutGil release(size(n, k, 8));
    return {n, k, PackedBits(rows.as<uint8_t>(), n, bytes_of(k), last_mask(k))};
  }
};

// Scales as the driver takes them, if there are any.
struct Scaling {
  Buffer a, b, bias;
  std::optional<BinaryScales> scales;

  Scaling(nb::handle a_array, nb::handle b_array, nb::handle bias_array, int64_t rows, int64_t columns) {
    if (a_array.is_none()) return;
    a = Buffer(a_array, "a_scale"), b = Buffer(b_array, "b_scale");
    if (a.bytes() != 4) a.require(4 * rows, "a_scale");
    if (b.bytes() != 4) b.require(4 * columns, "b_scale");
    if (!bias_array.is_none()) bias = Buffer(bias_array, "bias"), bias.require(4 * columns, "bias");
    scales = BinaryScales{a.as<float>(), a.bytes() != 4, b.as<float>(), b.bytes() != 4, bias.as<float>()};
  }
  const BinaryScales* get() const { return scales ? &*scales : nullptr; }
};

void matmul(nb::handle a_array, int64_t m, const BinaryMatrix& b, nb::handle out_array, nb::handle a_scale,
            nb::handle b_scale, nb::handle bias) {
  require_count(m, "m");
  const Buffer a(a_array, "a"), out(out_array, "out", true);
  a.require(product_of({m, bytes_of(b.k)}, "a"), "a"), out.require(4 * product_of({m, b.n}, "out"), "out");
  const Scaling scaling(a_scale, b_scale, bias, m, b.n);
  const WithoutGil release(size(m, b.n, b.k));
  binary_matmul(a.as<uint8_t>(), m, b.bits, b.k, scaling.get(), out.as());
}

PackedBitsConv make_conv(nb::handle w_array, int64_t groups, int64_t channels, int64_t outputs,
                         std::array<int64_t, 2> kernel) {
  if (groups < 1 || channels < 0 || channels > kMostElements || outputs < 0 || kernel[0] < 1 || kernel[1] < 1 ||
      kernel[0] > kMostElements || kernel[1] > kMostElements)
    throw nb::value_error("sizes: expected at least one group and one tap, and no negative number of channels");
  const BinaryConvShape shape{groups, channels, outputs, {kernel[0], kernel[1]}};
  product_of({kernel[0] + 1, kernel[1] + 1, groups, outputs, 8 * bytes_of(channels)}, "sizes");
  require_bits(shape.taps() * 8 * shape.bytes(), "w: bits of an output");
  const Buffer w(w_array, "w");
  w.require(groups * outputs * shape.taps() * shape.bytes(), "w");
  return PackedBitsConv(w.as<uint8_t>(), shape);
}

void conv2d(nb::handle x_array, const PackedBitsConv& w, nb::handle out_array, std::array<int64_t, 3> image,
            std::array<int64_t, 2> stride, std::array<int64_t, 4> padding, std::array<int64_t, 2> dilation,
            bool channels_first, nb::handle x_scale, nb::handle w_scale, nb::handle bias) {
  const BinaryConvShape& s = w.shape();
  product_of(image, "image");
  for (const int64_t n : padding) product_of({n}, "padding");
  if (stride[0] < 1 || stride[1] < 1 || dilation[0] < 1 || dilation[1] < 1)
    throw nb::value_error("stride, dilation: must be positive");
  for (const int axis : {0, 1}) product_of({dilation[axis], s.kernel[axis]}, "dilation");
  const BinaryConvArgs a{image[0],
                         image[1],
                         image[2],
                         {stride[0], stride[1]},
                         {dilation[0], dilation[1]},
                         {padding[0], padding[1], padding[2], padding[3]},
                         channels_first};
  for (const int axis : {0, 1})
    if (image[axis + 1] + padding[axis] + padding[axis + 2] <= dilation[axis] * (s.kernel[axis] - 1))
      throw nb::value_error("image: smaller than the kernel");
  const Buffer x(x_array, "x"), out(out_array, "out", true);
  const int64_t outputs = s.groups * s.outputs, pixels = product_of({a.images, a.out(s, 0), a.out(s, 1)}, "out");
  x.require(product_of({a.images, a.height, a.width, s.groups, s.bytes()}, "x"), "x");
  out.require(4 * product_of({pixels, outputs}, "out"), "out");
  const Scaling scaling(x_scale, w_scale, bias, a.images, outputs);
  const WithoutGil release(size(pixels, outputs, s.taps() * s.channels));
  binary_conv2d(a, x.as<uint8_t>(), w, scaling.get(), out.as());
}

void align_rows(nb::handle stream_array, int64_t rows, int64_t k, nb::handle out_array) {
  require_bits(k, "k"), require_count(rows, "rows");
  const Buffer stream(stream_array, "stream"), out(out_array, "out", true);
  stream.require(bytes_of(product_of({rows, k}, "rows")), "stream"), out.require(rows * bytes_of(k), "out");
  const WithoutGil release(size(rows, k, 8));
  binary_align_rows(stream.as<uint8_t>(), rows, k, out.as<uint8_t>());
}

void channels_last(nb::handle stream_array, int64_t images, int64_t channels, int64_t pixels, int64_t groups,
                   nb::handle out_array) {
  const int64_t bits = product_of({images, channels, pixels}, "sizes");
  if (groups < 1 || channels % groups != 0) throw nb::value_error("groups: must divide channels");
  const Buffer stream(stream_array, "stream"), out(out_array, "out", true);
  stream.require(bytes_of(bits), "stream");
  out.require(product_of({images, pixels, groups, bytes_of(channels / groups)}, "out"), "out");
  const WithoutGil release(size(images, channels, 8 * pixels));
  binary_channels_last(stream.as<uint8_t>(), images, channels, pixels, groups, out.as<uint8_t>());
}

}  // namespace

void bind_binary(nb::module_& m) {
  nb::class_<BinaryMatrix>(m, "BinaryMatrix", "Columns of bits, packed once for many products.")
      .def(
          "__init__",
          [](BinaryMatrix* self, nb::handle bits, int64_t n, int64_t k) {
            new (self) BinaryMatrix(BinaryMatrix::make(bits, n, k));
          },
          "bits"_a, "n"_a, "k"_a)
      .def_prop_ro("n", [](const BinaryMatrix& b) { return b.n; })
      .def_prop_ro("k", [](const BinaryMatrix& b) { return b.k; })
      .def_prop_ro("nbytes", [](const BinaryMatrix& b) { return b.bits.nbytes(); });
  nb::class_<PackedBitsConv>(m, "BinaryConv", "Kernels of bits, packed once for many convolutions.")
      .def(
          "__init__",
          [](PackedBitsConv* self, nb::handle w, int64_t groups, int64_t channels, int64_t outputs,
             std::array<int64_t, 2> kernel) {
            new (self) PackedBitsConv(make_conv(w, groups, channels, outputs, kernel));
          },
          "w"_a, "groups"_a, "channels"_a, "outputs"_a, "kernel"_a)
      .def_prop_ro("groups", [](const PackedBitsConv& w) { return w.shape().groups; })
      .def_prop_ro("channels", [](const PackedBitsConv& w) { return w.shape().groups * w.shape().channels; })
      .def_prop_ro("outputs", [](const PackedBitsConv& w) { return w.shape().groups * w.shape().outputs; })
      .def_prop_ro(
          "kernel",
          [](const PackedBitsConv& w) { return std::array<int64_t, 2>{w.shape().kernel[0], w.shape().kernel[1]}; })
      .def_prop_ro("nbytes", &PackedBitsConv::nbytes);
  m.def("binary_matmul", &matmul, "a"_a, "m"_a, "b"_a, "out"_a, "a_scale"_a.none() = nb::none(),
        "b_scale"_a.none() = nb::none(), "bias"_a.none() = nb::none(),
        "Writes k - 2 * popcount(a xor b) as int32, or scaled as float32.");
  m.def(
      "binary_matmul_workspace",
      [](int64_t rows, int64_t n, int64_t k) {
        check_product(rows, n, k);
        return binary_matmul_workspace(rows, n, k);
      },
      "m"_a, "n"_a, "k"_a, "Bytes binary_matmul works in at most, b's own as packed included.");
  m.def("binary_conv2d", &conv2d, "x"_a, "w"_a, "out"_a, "image"_a, "stride"_a, "padding"_a, "dilation"_a,
        "channels_first"_a, "x_scale"_a.none() = nb::none(), "w_scale"_a.none() = nb::none(),
        "bias"_a.none() = nb::none(), "As binary_matmul, of bits [image, height, width, group, bytes].");
  m.def("binary_align_rows", &align_rows, "stream"_a, "rows"_a, "k"_a, "out"_a,
        "Rows of k bits without gaps as rows of whole bytes.");
  m.def("binary_channels_last", &channels_last, "stream"_a, "images"_a, "channels"_a, "pixels"_a, "groups"_a, "out"_a,
        "A stream of bits, channels first, as whole bytes of each pixel's channels, group after group.");
}

}  // namespace lowbit
