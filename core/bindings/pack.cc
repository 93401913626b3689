// Codes of fewer than 8 bits, and arrays NumPy does not know.
#include <nanobind/ndarray.h>

#include "bindings/bindings.h"
#include "drivers/elementwise/elementwise.h"

namespace lowbit {
namespace {

void require_packed(int bits, const Buffer& packed, int64_t codes, const char* name) {
  if (bits != 1 && bits != 2 && bits != 4) throw nb::value_error("bits: expected 1, 2 or 4");
  packed.require((codes * bits + 7) / 8, name);
}

void pack_codes(int bits, const Array<const uint8_t>& codes, const Array<uint8_t>& out) {
  require_packed(bits, out, codes.size(), "out");
  without_gil(codes.size(), [&] { pack(bits, codes.data(), codes.size(), out.data()); });
}

void unpack_codes(int bits, bool is_signed, const Array<const uint8_t>& data, const Array<uint8_t>& out) {
  require_packed(bits, data, out.size(), "data");
  without_gil(out.size(), [&] { unpack(bits, is_signed, data.data(), out.size(), out.data()); });
}

// NumPy has no bfloat16, so DLPack arrays of it are lent as the uint16 of their bits.
nb::ndarray<nb::numpy, uint16_t> bfloat16_bits(const nb::ndarray<nb::ro, nb::device::cpu>& array) {
  const nb::dlpack::dtype type = array.dtype();
  if (type.code != static_cast<uint8_t>(nb::dlpack::dtype_code::Bfloat) || type.bits != 16 || type.lanes != 1)
    throw nb::type_error("expected a bfloat16 array in CPU memory");
  using Given = nb::ndarray<nb::ro, nb::device::cpu>;
  const nb::capsule owner(new Given(array), [](void* p) noexcept { delete static_cast<Given*>(p); });
  std::vector<size_t> shape(array.ndim());
  std::vector<int64_t> strides(array.ndim());
  for (size_t i = 0; i < array.ndim(); ++i) shape[i] = array.shape(i), strides[i] = array.stride(i);
  return {const_cast<void*>(array.data()), array.ndim(), shape.data(), owner, strides.data()};
}

}  // namespace

void bind_pack(nb::module_& m) {
  m.def("pack", &pack_codes, "bits"_a, "codes"_a, "out"_a, "Packs codes, one a byte, the first in the low bits.");
  m.def("unpack", &unpack_codes, "bits"_a, "is_signed"_a, "data"_a, "out"_a, "The inverse of pack.");
  m.def("bfloat16_bits", &bfloat16_bits, "array"_a,
        nb::sig("def bfloat16_bits(array: typing.Any) -> numpy.typing.NDArray[numpy.uint16]"),
        "The bits of a DLPack bfloat16 array, without a copy.");
}

}  // namespace lowbit
